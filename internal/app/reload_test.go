package app

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
)

// reloadRig is a process whose keys are in files, with a provider that records the keys of its calls.
type reloadRig struct {
	*App
	t       *testing.T
	log     *testkit.Output
	dir     string
	environ []string
	key     string      // of a user
	calls   chan string // the Authorization of each call to the provider sg
}

func newReloadRig(t *testing.T) *reloadRig {
	t.Helper()
	r := &reloadRig{t: t, log: &testkit.Output{}, dir: t.TempDir(), calls: make(chan string, 10)}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodPost { // not if a list is read
			r.calls <- q.Header.Get("Authorization")
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(provider.Close)
	for name, value := range map[string]string{"sg": "first", "mg": "mg-key", "hook": "old-hook"} {
		r.write(name, value)
	}
	r.environ = []string{
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_BASE_URL=" + provider.URL,
		"SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY_FILE=" + r.file("sg"),
		"SAFEDELIVR_PROVIDERS_MG_KIND=mailgun",
		"SAFEDELIVR_PROVIDERS_MG_DOMAIN=mg.example.com",
		"SAFEDELIVR_PROVIDERS_MG_API_KEY_FILE=" + r.file("mg"),
		"SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY_FILE=" + r.file("hook"),
		"SAFEDELIVR_QUOTAS_REQUESTS_PER_SECOND=0",
		"SAFEDELIVR_PUBLIC_URL=https://mail.example.com",
		"SAFEDELIVR_GITHUB_CLIENT_ID=id",
		"SAFEDELIVR_GITHUB_CLIENT_SECRET=s",
	}
	r.App = serveApp(t, slog.New(slog.NewTextHandler(r.log, nil)), append(r.environ, "SAFEDELIVR_GITHUB_OPERATORS=ann")...)
	r.environ = append(r.environ, "SAFEDELIVR_DATA_DIR="+r.cfg.DataDir, "SAFEDELIVR_LISTEN="+r.cfg.Listen,
		"SAFEDELIVR_METRICS_LISTEN=off")
	r.key = newKey(t, r.App, models.KeyOptions{})
	return r
}

func (r *reloadRig) file(name string) string { return filepath.Join(r.dir, name) }

func (r *reloadRig) write(name, secret string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.file(name), []byte(secret+"\n"), 0o600))
}

// reload reads the configuration again, with more settings.
func (r *reloadRig) reload(more ...string) error {
	r.t.Helper()
	cfg, err := config.Load("", append(r.environ, more...))
	require.NoError(r.t, err)
	return r.Reload(&cfg)
}

// send sends a mail and returns the key of the provider's call.
func (r *reloadRig) send() string {
	r.t.Helper()
	_, err := client.New("http://"+r.Addr(), r.key).CreateBatch(r.t.Context(), client.NewBatch{
		From:      "shop@example.com",
		Subject:   "s",
		Text:      "t",
		Providers: []string{"sg"},
		To:        []client.Recipient{{Email: "ann@example.com"}},
	})
	require.NoError(r.t, err)
	select {
	case key := <-r.calls:
		return strings.TrimPrefix(key, "Bearer ")
	case <-time.After(testkit.Patience):
		r.t.Fatal("no call")
		return ""
	}
}

// post posts an event that is signed with a key, and returns the status.
func (r *reloadRig) post(key string) int {
	r.t.Helper()
	now, token := strconv.FormatInt(time.Now().Unix(), 10), models.NewUserID()
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(now + token))
	body := fmt.Sprintf(`{"signature":{"timestamp":%q,"token":%q,"signature":%q},"event-data":{"event":"delivered"}}`,
		now, token, hex.EncodeToString(mac.Sum(nil)))
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://"+r.Addr()+"/webhooks/mg",
		strings.NewReader(body))
	require.NoError(r.t, err)
	resp, err := http.DefaultClient.Do(q)
	require.NoError(r.t, err)
	require.NoError(r.t, resp.Body.Close())
	return resp.StatusCode
}

// Keys that were replaced in files are used by the next call and the next post after a reload. Requests that are sent
// without a pause meanwhile all succeed.
func TestReload(t *testing.T) {
	t.Parallel()
	r := newReloadRig(t)
	require.Equal(t, "first", r.send())
	require.Equal(t, http.StatusOK, r.post("old-hook"))
	require.NotEqual(t, http.StatusOK, r.post("new-hook"))
	operator := func(login string) bool {
		return r.serviceConfig().Operator(models.User{ID: "gh7", Name: login})
	}
	require.True(t, operator("ann"))

	ctx, stop := t.Context(), make(chan struct{})
	var asked, failed atomic.Int64
	var asking sync.WaitGroup
	batch := fmt.Sprintf(`{"from":"a@b.test","to":["c@d.test"],"subject":"s","text":"t","deliver_at":%q}`,
		time.Now().AddDate(0, 0, 1).Format(time.RFC3339))
	for method, want := range map[string]int{http.MethodGet: http.StatusOK, http.MethodPost: http.StatusAccepted} {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var body io.Reader
				if method == http.MethodPost {
					body = strings.NewReader(batch)
				}
				q, _ := http.NewRequestWithContext(ctx, method, "http://"+r.Addr()+"/v1/batches", body)
				q.Header.Set("Authorization", "Bearer "+r.key)
				q.Header.Set("Content-Type", "application/json")
				resp, err := http.DefaultClient.Do(q)
				if err != nil || resp.StatusCode != want {
					failed.Add(1)
				}
				if err == nil {
					_ = resp.Body.Close()
				}
				asked.Add(1)
			}
		})
	}
	for i := range 20 {
		key := "key-" + strconv.Itoa(i)
		r.write("sg", key)
		require.NoError(t, r.reload("SAFEDELIVR_GITHUB_OPERATORS=ann"))
		require.Equal(t, key, r.send())
	}
	r.write("hook", "new-hook")
	r.write("before", "old-hook")
	require.NoError(t, r.reload("SAFEDELIVR_GITHUB_OPERATORS=bob",
		"SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY_OLD_FILE="+r.file("before")))
	require.Equal(t, http.StatusOK, r.post("new-hook"))
	require.Equal(t, http.StatusOK, r.post("old-hook"))
	require.False(t, operator("ann"))
	require.True(t, operator("bob"))
	close(stop)
	asking.Wait()
	require.Positive(t, asked.Load())
	require.Zero(t, failed.Load(), "of %d requests", asked.Load())
	require.NotContains(t, r.log.String(), "only after a restart")
}

// A reload with mistakes changes nothing and returns all of them.
func TestReloadWithMistakes(t *testing.T) {
	t.Parallel()
	r := newReloadRig(t)
	r.write("sg", "new key")
	r.write("hook", "new-hook")
	r.write("mg", "new mg key")
	err := r.reload("SAFEDELIVR_GITHUB_OPERATORS=bob")
	require.ErrorContains(t, err, "SAFEDELIVR_PROVIDERS_SG_API_KEY_FILE: holds spaces")
	require.ErrorContains(t, err, "SAFEDELIVR_PROVIDERS_MG_API_KEY_FILE: holds spaces")
	require.NotContains(t, err.Error(), "new")
	require.Equal(t, "first", r.send())
	require.Equal(t, http.StatusOK, r.post("old-hook"))
	require.NotEqual(t, http.StatusOK, r.post("new-hook"))
	require.True(t, r.serviceConfig().Operator(models.User{ID: "gh7", Name: "ann"}))
}

// A reload names the settings that have changed and need a restart, without their values.
func TestReloadNamesWhatNeedsRestart(t *testing.T) {
	t.Parallel()
	r := newReloadRig(t)
	require.NoError(t, r.reload("SAFEDELIVR_GITHUB_OPERATORS=ann", "SAFEDELIVR_LIMITS_RETRIES=3", "SAFEDELIVR_LOG=debug",
		"SAFEDELIVR_PROVIDERS_SG_WEIGHT=7", "SAFEDELIVR_PROVIDERS_NEW_KIND=sendgrid", "SAFEDELIVR_AMQP_URL=amqp://u:pass@h/"))
	require.Contains(t, r.log.String(), `settings="amqp.url, limits.retries, providers.new, providers.sg.weight"`)
	require.NotContains(t, r.log.String(), "pass")
	require.Equal(t, "first", r.send())
}
