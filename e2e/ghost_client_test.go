//go:build full

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestGhostClient has Ghost's own code send a newsletter and fetch its events. The answer to each second request is
// lost, so that Ghost repeats it, and a provider fails in the middle. Each member gets it once.
func TestGhostClient(t *testing.T) {
	f := newForeign(t, "mailgun", "SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=100", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=100")
	require.NoError(t, os.CopyFS(f.folder, os.DirFS("testdata/ghost")))
	to, err := url.Parse("http://" + f.addr)
	require.NoError(t, err)
	var posts atomic.Int64
	behind := httputil.NewSingleHostReverseProxy(to)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			behind.ServeHTTP(w, r)
			return
		}
		if n := posts.Add(1); n < 10 && n%2 == 1 {
			if n == 5 {
				f.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
			}
			behind.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	f.write("recipe.txt", strings.ReplaceAll(f.recipe("Ghost, newsletters", ""), "http://"+f.addr, proxy.URL))
	f.do("npm", "pack", "--silent", "ghost@6.65.0")
	f.do("mkdir", "ghost")
	f.do("tar", "-xzf", "ghost-6.65.0.tgz", "-C", "ghost")
	f.do("npm", "install", "--prefer-offline", "--no-audit", "--no-fund", "mailgun.js@10.4.0", "form-data@4.0.6",
		"lodash@4", "handlebars@4", "@tryghost/debug@2.3.14", "@tryghost/errors@3.3.14", "@tryghost/logging@5.4.5",
		"@tryghost/metrics@3.6.0")
	var members []string
	for i := range 5_000 {
		members = append(members, fmt.Sprintf("Member.%d+x@demo.test", i))
	}
	members[7], members[4_997] = "complain+7@demo.test", "hardbounce+3@demo.test"
	newsletter := func(members []string, id string, args ...string) string {
		raw, err := json.Marshal(map[string]any{"members": members, "emailId": id})
		require.NoError(t, err)
		f.write("members.json", string(raw))
		return f.do("node", append([]string{"newsletter.js"}, args...)...)
	}
	out := newsletter(members, "65f0c0ffee65f0c0ffee65f0")
	require.Equal(t, 5, strings.Count(out, "repeat "), out)
	require.Contains(t, out, `"complained":1`)
	require.Contains(t, out, `"failed 550":1`)
	require.Contains(t, out, "on again false true false\n") // it was on one list
	all, delivered := f.copies()
	for id, n := range delivered {
		require.LessOrEqual(t, n, 1, id)
	}
	require.Len(t, all, 5_000)

	// With a Message-ID for each member. The member who bounced gets nothing, and Ghost reads why.
	out = newsletter(members[4_900:], "65f0c0ffee65f0c0ffee65f1", "ids")
	require.Contains(t, out, "sent null\n")
	require.Contains(t, out, `events {"delivered":99,"failed 605":1}`)
	ids := map[string]bool{}
	after, _ := f.copies()
	for id := range after {
		if all[id] == 0 {
			c := decoded(t, &f.sim.Copies(id)[0])
			ids[c.Headers["Message-Id"]+c.Headers["References"]] = true
			require.Equal(t, "News {{of}} the week", c.Subject)
			require.Equal(t, "<p>Hi &lt;"+c.Address+"&gt;</p>", c.HTML)
			require.Equal(t, "Hi <"+c.Address+">", c.Text)
			require.Equal(t, "<https://blog.test/off?m="+c.Address+">", c.Headers["List-Unsubscribe"])
		}
	}
	require.Len(t, ids, 99)
	out = newsletter(nil, "", "automation")
	require.Contains(t, out, "automation delivered new@demo.test\n")
}
