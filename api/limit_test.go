package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/drafts"
)

// batchTo returns a batch for n recipients.
func batchTo(n int) string {
	var b strings.Builder
	b.WriteString(`{"from": "a@one.example", "subject": "s", "text": "t", "to": [`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"r%d@two.example"`, i)
	}
	b.WriteString("]}")
	return b.String()
}

// limitsOf returns the limits of an answer by name.
func limitsOf(t *testing.T, r *reply) (v client.Limits, by map[models.Limit]client.LimitUse) {
	t.Helper()
	require.Equal(t, http.StatusOK, r.Status, "%s", r.Body)
	require.NoError(t, json.Unmarshal(r.Body, &v))
	by = map[models.Limit]client.LimitUse{}
	for _, l := range v.Limits {
		by[models.Limit(l.Limit)] = l
	}
	return v, by
}

// TestQuotas: a user gets as many recipients and batches as the quotas allow, with all keys together. Other users are
// not affected. A repeat is not counted.
func TestQuotas(t *testing.T) {
	t.Parallel()
	testkit.WithinHour()
	f := newFixture(t, func(s *setup) {
		s.service.Quotas = models.Limits{models.RecipientsPerHour: 10, models.BatchesPerDay: 3}
	})
	send := func(n int, header ...string) *reply {
		return f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(batchTo(n)), header...)
	}
	first := send(6, "Idempotency-Key", "one")
	f.accepted(first)
	require.Equal(t, "true", send(6, "Idempotency-Key", "one").Header.Get("Idempotency-Replayed"))

	over := send(11)
	require.Equal(t, http.StatusRequestEntityTooLarge, over.Status)
	require.Equal(t, "over_limit", over.problem(t).Code)
	full := send(5, "Idempotency-Key", "two")
	require.Equal(t, http.StatusTooManyRequests, full.Status)
	require.Equal(t, "limit_reached", full.problem(t).Code)
	require.NotEmpty(t, full.Header.Get("Retry-After"))
	require.Equal(t, "limit_reached", send(5, "Idempotency-Key", "two").problem(t).Code, "its key does not help")
	f.accepted(send(4))
	require.Regexp(
		t,
		`^"recipients_per_hour";r=0;t=\d+, "batches_per_day";r=1;t=\d+$`,
		f.get("/v1/usage").Header.Get("RateLimit"),
	)
	require.Equal(t, `"recipients_per_hour";q=10;w=3600, "batches_per_day";q=3;w=86400`,
		f.get("/v1/usage").Header.Get("RateLimit-Policy"))
	_, used := limitsOf(t, f.get("/v1/usage"))
	require.EqualValues(t, 10, used[models.RecipientsPerHour].Used)
	require.EqualValues(t, 2, used[models.BatchesPerDay].Used)
	require.False(t, used[models.BatchesPerDay].Resets.IsZero())
	require.Zero(t, used[models.RequestsPerSecond].Value)

	f.accepted(send(9, "Authorization", "Bearer "+f.foreign))

	f.serve(Config{}) // another process
	require.Equal(t, "limit_reached", send(1).problem(t).Code)

	var found struct {
		Notices []models.Notice `json:"notices"`
	}
	require.NoError(t, json.Unmarshal(f.operator().get("/v1/notices").Body, &found))
	require.Len(t, found.Notices, 2, "each user's hour once")
	for i, used := range []int64{10, 9} {
		n := found.Notices[i]
		require.Equal(
			t,
			[]any{models.QuotaNear, models.RecipientsPerHour, used, int64(10)},
			[]any{n.Kind, n.Limit, n.Count, n.Most},
		)
	}
	require.Equal(t, f.user, found.Notices[0].User)
	require.NotEqual(t, f.user, found.Notices[1].User)
}

// TestStoredBatches: a user has at most so many stored batches, through all processes together. The error of a refused
// one says what to do.
func TestStoredBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) { s.service.Quotas = models.Limits{models.StoredBatches: 3} })
	f.accepted(f.post(batchTo(2)))
	f.accepted(f.post(batchTo(1)))
	f.serve(Config{}) // another process
	f.accepted(f.post(batchTo(1)))
	full := f.post(batchTo(1))
	require.Equal(t, http.StatusTooManyRequests, full.Status)
	require.Equal(t, "3600", full.Header.Get("Retry-After"))
	require.Equal(t, "limit_reached", full.problem(t).Code)
	require.Contains(t, full.problem(t).Detail, "You have 3 stored batches")
	require.Contains(t, full.problem(t).Detail, "Old batches are removed by themselves")
	_, used := limitsOf(t, f.get("/v1/usage"))
	require.EqualValues(t, 3, used[models.StoredBatches].Used)
	require.EqualValues(t, 3, used[models.StoredBatches].Value)
}

// TestStoredBytes: the mail of a user takes so many bytes, however few requests it comes in.
func TestStoredBytes(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	f := newFixture(t, func(s *setup) { s.service.Quotas = models.Limits{models.StoredBytes: limit} })
	f.carryAttachments()
	batch := func(n int) string {
		return `{"from": "a@one.example", "to": ["b@two.example"], "subject": "s", "text": "` + strings.Repeat("x", n) + `"}`
	}
	over := f.post(batch(limit))
	require.Equal(t, http.StatusRequestEntityTooLarge, over.Status)
	require.Equal(t, "over_limit", over.problem(t).Code)
	f.accepted(f.post(batch(60_000)))
	for name, r := range map[string]*reply{
		"content":    f.post(batch(60_000)),
		"attachment": f.post(batchOf(t, `{"attachments": [`+attachmentOf("a", "text/plain", "", randomBytes(60_000))+`]}`)),
		"recipients": f.post(batchTo(3000)),
	} {
		require.Equal(t, http.StatusTooManyRequests, r.Status, "%s: %s", name, r.Body)
		require.Equal(t, "3600", r.Header.Get("Retry-After"), name)
		require.Equal(t, "limit_reached", r.problem(t).Code, name)
		require.Contains(t, r.problem(t).Detail, "stored_bytes", name)
	}
	put := f.do(http.MethodPut, "/v1/messages", "application/x-ndjson", strings.NewReader(
		`{"id": "a", "from": "a@one.example", "to": "b@two.example", "subject": "s", "text": "`+strings.Repeat("x", 60_000)+
			`"}`))
	require.Contains(t, string(put.Body), "limit_reached")
	f.accepted(f.post(batch(20_000)))
	_, used := limitsOf(t, f.get("/v1/usage"))
	require.InDelta(t, 80_000, used[models.StoredBytes].Used, 1000)
	require.EqualValues(t, limit, used[models.StoredBytes].Value)
	f.accepted(f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(batch(60_000)),
		"Authorization", "Bearer "+f.foreign))
}

// TestDiskShare: near the reserve, only the users are refused whose mail takes more than what is free above it.
func TestDiskShare(t *testing.T) {
	t.Parallel()
	const reserve = 1_000_000
	var free atomic.Int64
	free.Store(nearly * reserve)
	f := newFixture(t, func(s *setup) {
		s.service.Sole = true
		s.service.DiskReserve, s.service.DiskFree = reserve, func() (int64, error) { return free.Load(), nil }
	})
	send := func(key string, n int) *reply {
		return f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(batchTo(n)),
			"Authorization", "Bearer "+key)
	}
	f.accepted(send(f.secret, 20_000))
	f.accepted(send(f.secret, 1))
	free.Store(reserve + 100_000)
	r := send(f.secret, 1)
	require.Equal(t, http.StatusServiceUnavailable, r.Status)
	require.Equal(t, "disk_share", r.problem(t).Code)
	require.Contains(t, r.problem(t).Detail, "more than your share of 100000")
	require.Equal(t, "3600", r.Header.Get("Retry-After"))
	require.Equal(t, "disk_share", f.do(http.MethodPost, "/v1/templates", "application/json",
		strings.NewReader(`{"name":"a","subject":"s","text":"t"}`)).problem(t).Code)
	f.accepted(send(f.foreign, 1))
	free.Store(reserve - 1)
	require.Equal(t, "disk_reserve", send(f.foreign, 1).problem(t).Code)
	free.Store(2 * reserve)
	f.accepted(send(f.secret, 1))
}

// nearly times the reserve is enough for everyone.
const nearly = 4

// TestStoreFailureGivesQuotaBack: a batch that was not stored is not counted.
func TestStoreFailureGivesQuotaBack(t *testing.T) {
	t.Parallel()
	testkit.WithinHour()
	f := newFixture(t, func(s *setup) { s.service.Quotas = models.Limits{models.RecipientsPerHour: 1} })
	f.store.failing("PutBatch", func(n int) error {
		if n == 1 {
			return models.ErrUnavailable
		}
		return nil
	})
	require.Equal(t, "store_unavailable", f.post(batchTo(1)).problem(t).Code)
	f.accepted(f.post(batchTo(1)))
	require.Equal(t, "limit_reached", f.post(batchTo(1)).problem(t).Code)
}

// TestRequestsAreLimited: one user's requests do not use up another's.
func TestRequestsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, inBubble, func(s *setup) { s.service.Quotas = models.Limits{models.RequestsPerSecond: 1} })
		require.Equal(t, http.StatusOK, f.get("/v1/stats").Status)
		refused := f.get("/v1/stats")
		require.Equal(t, http.StatusTooManyRequests, refused.Status)
		require.Equal(t, "limit_reached", refused.problem(t).Code)
		require.NotEmpty(t, refused.Header.Get("Retry-After"))
		require.Regexp(t, `"requests_per_second";r=0;t=\d+`, refused.Header.Get("RateLimit"))
		require.Equal(t, http.StatusOK, f.get("/v1/stats", "Authorization", "Bearer "+f.foreign).Status)
	})
}

// TestRequestsAtOnce: a request counts until it has ended.
func TestRequestsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, inBubble, func(s *setup) { s.service.Quotas = models.Limits{models.RequestsAtOnce: 1} })
		// The body is sent once the server reads it.
		f.client = &http.Client{Transport: &http.Transport{
			DialContext: f.net.Dial, ExpectContinueTimeout: time.Hour,
		}}
		defer f.client.CloseIdleConnections()
		body, w := io.Pipe()
		done := make(chan *reply)
		go func() {
			done <- f.do(http.MethodPost, "/v1/batches", "application/json", body, "Expect", "100-continue")
		}()
		whole := batchTo(1)
		_, err := io.WriteString(w, whole[:20])
		require.NoError(t, err)
		require.Equal(t, http.StatusTooManyRequests, f.get("/v1/stats").Status)
		_, err = io.WriteString(w, whole[20:])
		require.NoError(t, err)
		require.NoError(t, w.Close())
		f.accepted(<-done)
		synctest.Wait() // the answer was written before the request ended
		require.Equal(t, http.StatusOK, f.get("/v1/stats").Status)
	})
}

// TestSpoolIsLimited: what a user's requests keep on disk is limited until they end.
func TestSpoolIsLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) { s.service.Quotas = models.Limits{models.SpoolBytes: 1 << 20} })
	require.Equal(t, "over_limit", f.post(batchTo(100_000)).problem(t).Code)
	f.accepted(f.post(batchTo(30_000)))
	f.accepted(f.post(batchTo(30_000)))
}

// TestSpoolOfAttachments: a mail that never fits into the limit, because its attachment is on disk twice while it is
// read, is refused for good. Its client would otherwise repeat it for ever.
func TestSpoolOfAttachments(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) {
		s.service.Quotas = models.Limits{models.SpoolBytes: 1_600_000}
		s.cfg.Dialects = []*dialect.Dialect{resend.New()}
	})
	f.deps.Providers[0].Carries = models.Capabilities{Attachments: true}
	f.serve(f.server.cfg)
	send := func(size int) *reply {
		content := base64.StdEncoding.EncodeToString(make([]byte, size))
		return f.emails("/emails", `{"from": "a@b.de", "to": "c@d.de", "subject": "s", "text": "t",
			"attachments": [{"filename": "a", "content": "`+content+`"}]}`)
	}
	require.Equal(t, http.StatusOK, send(600_000).Status)
	r := send(900_000)
	require.Equal(t, http.StatusRequestEntityTooLarge, r.Status, string(r.Body))
	require.Empty(t, r.Header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, send(600_000).Status)
}

// TestDiskReserve: below the reserve, batches are refused and everything else goes on.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	f := newFixture(t, func(s *setup) {
		s.service.DiskReserve, s.service.DiskFree = 100, func() (int64, error) { return free.Load(), nil }
	})
	free.Store(99)
	r := f.post(batchTo(1))
	require.Equal(t, http.StatusServiceUnavailable, r.Status)
	require.Equal(t, "disk_reserve", r.problem(t).Code)
	require.NotEmpty(t, r.Header.Get("Retry-After"))
	require.Equal(t, "disk_reserve", f.post(batchTo(30_000)).problem(t).Code)
	list := f.do(http.MethodPost, "/v1/suppressions/import", "text/csv", strings.NewReader("email\na@b.de\n"))
	require.Equal(t, "disk_reserve", list.problem(t).Code)
	template := `{"name":"a","subject":"s","text":"t"}`
	require.Equal(t, "disk_reserve", f.do(http.MethodPost, "/v1/templates", "application/json",
		strings.NewReader(template)).problem(t).Code)
	app := `{"url": "http://127.0.0.1:1/"}`
	require.Equal(t, "disk_reserve", f.do(http.MethodPost, "/v1/endpoints", "application/json",
		strings.NewReader(app)).problem(t).Code)
	require.Equal(t, http.StatusCreated, f.operator().do(http.MethodPost, "/v1/endpoints?installation=true",
		"application/json", strings.NewReader(app)).Status)
	_, err := f.serve(Config{}).Drafts.Save(t.Context(), f.user, drafts.Draft{ID: drafts.NewID()})
	require.ErrorContains(t, err, "too little free disk space")
	require.Equal(t, http.StatusOK, f.get("/v1/stats").Status)
	free.Store(100)
	require.Equal(t, http.StatusCreated, f.do(http.MethodPost, "/v1/templates", "application/json",
		strings.NewReader(template)).Status)
	f.accepted(f.post(batchTo(1)))
}

// TestDiskFills: an upload ends when the free space falls below the reserve while it is read.
func TestDiskFills(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	f := newFixture(t, func(s *setup) {
		s.service.DiskReserve, s.service.DiskFree = 100, func() (int64, error) {
			if asked.Add(1) == 2 {
				return 99, nil
			}
			return nearly * 100, nil
		}
	})
	require.Equal(t, "disk_reserve", f.post(batchTo(30_000)).problem(t).Code)
	require.Empty(t, f.store.writes())
	f.accepted(f.post(batchTo(30_000)))
}

// TestSetLimits: an operator sets the limits of a user and of a key, which take effect in
// every process.
func TestSetLimits(t *testing.T) {
	t.Parallel()
	testkit.WithinHour()
	f := newFixture(t, func(s *setup) { s.service.Quotas = models.Limits{models.RecipientsPerDay: 100} })
	keys, err := f.store.Keys(f.Context(), f.other)
	require.NoError(t, err)
	put := func(path, body string) *reply {
		return f.do(http.MethodPut, path, "application/json", strings.NewReader(body))
	}
	require.Equal(t, "scope_missing", put("/v1/users/bob/limits", `{}`).problem(t).Code)
	f = f.operator()
	v, by := limitsOf(t, put("/v1/users/bob/limits", `{"recipients_per_day": 5, "batches_per_day": 0, "why": "trial"}`))
	require.True(t, v.Changed)
	require.Equal(t, f.other, v.User)
	require.Equal(t, int64(5), by[models.RecipientsPerDay].Value)
	require.True(t, by[models.RecipientsPerDay].Set)
	require.True(t, by[models.BatchesPerDay].Set)
	require.False(t, by[models.RecipientsPerHour].Set)
	v, _ = limitsOf(t, put("/v1/users/"+f.other+"/limits", `{"recipients_per_day": 5, "batches_per_day": 0}`))
	require.False(t, v.Changed)

	p := put(
		"/v1/users/bob/limits",
		`{"recipients_per_day": -1, "mails": 3, "requests_at_once": 1.5, "spool_bytes": null}`,
	).problem(
		t,
	)
	require.ElementsMatch(
		t,
		[]string{"/mails unknown_field", "/requests_at_once wrong_type", "/spool_bytes wrong_type"},
		p.pointers(),
	)
	p = put("/v1/users/bob/limits", `{"recipients_per_day": -1, "requests_at_once": 1000000000001}`).problem(t)
	require.Equal(t, []string{"/recipients_per_day invalid_value", "/requests_at_once invalid_value"}, p.pointers())
	require.Equal(t, "not_found", put("/v1/users/eve/limits", `{}`).problem(t).Code)
	require.Equal(t, "not_found", put("/v1/users/ann/keys/"+keys[0].ID+"/limits", `{}`).problem(t).Code)

	send := func(n int) *reply {
		return f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(batchTo(n)),
			"Authorization", "Bearer "+f.foreign)
	}
	require.Equal(t, "over_limit", send(6).problem(t).Code)
	path := "/v1/users/bob/keys/" + keys[0].ID + "/limits"
	v, _ = limitsOf(t, put(path, `{"recipients_per_day": 2}`))
	require.Equal(t, keys[0].ID, v.Key)
	require.True(t, v.Changed)
	v, _ = limitsOf(t, put(path, `{"recipients_per_day": 2}`))
	require.False(t, v.Changed)
	f.serve(Config{})
	require.Equal(t, "over_limit", send(3).problem(t).Code)
	f.accepted(send(2))
	require.Equal(t, "limit_reached", send(1).problem(t).Code, "the key's limit")
	_, by = limitsOf(t, f.get("/v1/users/bob/limits"))
	require.EqualValues(t, 2, by[models.RecipientsPerDay].Used)
	limitsOf(t, put(path, `{}`))
	f.accepted(send(1))

	var audit audit.Page
	require.NoError(t, json.Unmarshal(f.get("/v1/audit").Body, &audit))
	require.Equal(t, models.SetLimits, audit.Commands[2].Command)
	require.Equal(t, "trial", audit.Commands[2].Why)
	require.Equal(t, models.Limits{models.RecipientsPerDay: 5, models.BatchesPerDay: 0}, audit.Commands[2].Limits)
}
