package webhooks

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// TestRefusedUnread checks that a post is refused by its header, its length or its path before
// its body arrives, and that the connection closes.
func TestRefusedUnread(t *testing.T) {
	t.Parallel()
	unsigned := accepting("")
	unsigned.header = &models.WebhookError{Status: 401, Code: "bad_signature", Detail: "not signed"}
	f := newFixture(t, Provider{"sg", accepting("")}, Provider{"unsigned", unsigned})
	for _, c := range []struct{ method, path, length, status, code string }{
		{"POST", "/webhooks/unsigned", "100", "401", "bad_signature"},
		{"POST", "/webhooks/sg", strconv.Itoa(testLimit + 1), "413", "too_large"},
		{"POST", "/webhooks/unknown", "100", "429", "no_such_provider"},
		{"POST", "/webhooks/sg/more", "100", "429", "no_such_provider"},
		{"PUT", "/webhooks/sg", "100", "405", ""},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(readTime/2)))
		_, err = io.WriteString(
			conn,
			c.method+" "+c.path+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+c.length+"\r\n\r\n[",
		)
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err, "%s: the connection stays open", c.path)
		require.NoError(t, conn.Close())
		require.Contains(t, string(answer), "HTTP/1.1 "+c.status)
		require.Contains(t, string(answer), c.code)
		require.Contains(t, string(answer), "Connection: close")
	}
	require.Empty(t, f.inbox.stored(t))
}

// TestManyRefusalsAreDelayed checks that a stranger who posts without end gets few answers, that the
// posts which wait for theirs hold no memory, and that a provider's post is answered at once meanwhile.
func TestManyRefusalsAreDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refuse := &models.WebhookError{Status: 401, Code: "bad_signature", Detail: "a reason"}
		unsigned, forged := accepting(""), accepting("")
		unsigned.header = refuse
		forged.verify = func(*models.Webhook) (models.Verified, error) { return models.Verified{}, refuse }
		s := New(
			testDoor,
			nullInbox{},
			&hangingBroker{},
			[]Provider{{"sg", accepting("")}, {"unsigned", unsigned}, {"forged", forged}},
			priority.New(),
			nil,
		)
		defer s.Close()
		post := func(method, path string) int {
			rec := httptest.NewRecorder()
			s.ServeHTTP(
				rec,
				httptest.NewRequestWithContext(t.Context(), method, "/webhooks/"+path, strings.NewReader("[]")),
			)
			return rec.Code
		}
		began := time.Now()
		for range promptRefusals {
			require.Equal(t, http.StatusUnauthorized, post(http.MethodPost, "unsigned"))
		}
		require.Zero(t, time.Since(began), "a few are answered at once")
		for _, c := range []struct {
			method, path string
			status       int
		}{
			{http.MethodPost, "unsigned", http.StatusUnauthorized},
			{http.MethodPost, "forged", http.StatusUnauthorized},
			{http.MethodPost, "unknown", http.StatusTooManyRequests},
			{http.MethodPut, "sg", http.StatusMethodNotAllowed},
		} {
			s.prompt.ReserveN(time.Now(), promptRefusals) // as if others had come just now
			began := time.Now()
			answered := make(chan int)
			go func() { answered <- post(c.method, c.path) }()
			synctest.Wait()
			require.True(t, s.budget.first.TryAcquire(firstBudget), "%s: what waits holds memory", c.path)
			s.budget.first.Release(firstBudget)
			require.Equal(t, http.StatusOK, post(http.MethodPost, "sg"))
			require.Zero(t, time.Since(began))
			require.Equal(t, c.status, <-answered)
			require.Equal(t, refusalPause, time.Since(began), c.path)
		}
	})
}

// TestRefusalsDoNotFillTheLog checks that many refused posts make few lines, which hold their
// number.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		log := slog.New(slog.NewTextHandler(&lines, nil))
		s := New(
			testDoor,
			nullInbox{},
			&hangingBroker{},
			[]Provider{{"sg", refusing(401, "bad_signature")}},
			priority.New(),
			log,
		)
		defer s.Close()
		for range 100 {
			s.ServeHTTP(
				httptest.NewRecorder(),
				httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/sg",
					strings.NewReader("[]")),
			)
			time.Sleep(logEvery / 10)
		}
		require.Equal(t, 10, strings.Count(lines.String(), "\n"))
		require.Contains(t, lines.String(), "posts=10")
	})
}
