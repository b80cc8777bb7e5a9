package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// repeat posts a batch with an idempotency key.
func (f *fixture) repeat(key, body string, header ...string) *reply {
	f.Helper()
	return f.do(
		http.MethodPost,
		"/v1/batches",
		"application/json",
		strings.NewReader(body),
		append([]string{"Idempotency-Key", key}, header...)...)
}

// TestRepeat: the same request with the same key is one batch, and gets the first answer again.
func TestRepeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const multi = "--%[1]s\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\na@b.de\r\n" +
		"--%[1]s\r\nContent-Disposition: form-data; name=\"from\"\r\n\r\na@b.de\r\n" +
		"--%[1]s\r\nContent-Disposition: form-data; name=\"subject\"\r\n\r\ns\r\n" +
		"--%[1]s\r\nContent-Disposition: form-data; name=\"body\"\r\n\r\nb\r\n--%[1]s--\r\n"
	batches := 0
	for name, c := range map[string][2][2]string{ // type and body of the request and of its repeat
		"JSON": {{"application/json", batchOf(t, `{}`)}, {"application/json; charset=utf-8", batchOf(t, `{}`)}},
		"many of them": {
			{"application/json", batchOf(t, `{"to": [`+numbered(0, 2500)+`]}`)},
			{"application/json", batchOf(t, `{"to": [`+numbered(0, 2500)+`]}`)},
		},
		"a form": {
			{"application/x-www-form-urlencoded", "from=a@b.de&subject=s&body=b&to=a@b.de"},
			{"application/x-www-form-urlencoded", "from=a@b.de&subject=s&body=b&to=a@b.de"},
		},
		"another boundary": {{"multipart/form-data; boundary=X", fmt.Sprintf(multi, "X")},
			{"multipart/form-data; boundary=YY", fmt.Sprintf(multi, "YY")}},
	} {
		first := f.do(
			http.MethodPost,
			"/v1/batches",
			c[0][0],
			strings.NewReader(c[0][1]),
			"Idempotency-Key",
			strings.ReplaceAll(name, " ", "-"),
		)
		a, _, _ := f.accepted(first)
		require.Empty(t, first.Header.Get("Idempotency-Replayed"))
		for range 2 {
			second := f.do(
				http.MethodPost,
				"/v1/batches",
				c[1][0],
				strings.NewReader(c[1][1]),
				"Idempotency-Key",
				strings.ReplaceAll(name, " ", "-"),
			)
			b, _, _ := f.accepted(second)
			require.Equal(t, a.ID, b.ID, name)
			require.JSONEq(t, string(first.Body), string(second.Body))
			require.Equal(t, "true", second.Header.Get("Idempotency-Replayed"))
		}
		batches++
	}
	require.Len(t, read[batchList](f, "/v1/batches").Batches, batches)

	require.Equal(t, "idempotency_key_reused", f.repeat("JSON", batchOf(t, `{"subject": "another"}`)).problem(t).Code)
	r := f.do(
		http.MethodPost,
		"/v1/batches",
		"application/x-www-form-urlencoded",
		strings.NewReader("from=a@b.de&subject=s&body=b&to=x@b.de"),
		"Idempotency-Key",
		"JSON",
	)
	require.Equal(t, http.StatusUnprocessableEntity, r.Status)
	require.Len(t, read[batchList](f, "/v1/batches").Batches, batches)
	f.secret = f.foreign
	f.accepted(f.repeat("JSON", batchOf(t, `{"subject": "a key of another user"}`)))
}

// TestInvalidKeys: a key has 1 to 256 visible ASCII characters.
func TestInvalidKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, key := range map[string]string{
		"space":     "a b",
		"long":      strings.Repeat("k", 257),
		"not ASCII": "kë",
		"a tab":     "a\tb",
	} {
		r := f.repeat(key, batchOf(t, `{}`))
		require.Equal(t, http.StatusBadRequest, r.Status, name)
		require.Equal(t, "invalid_idempotency_key", r.problem(t).Code, name)
	}
	req, err := http.NewRequestWithContext(
		t.Context(),
		http.MethodPost,
		f.url+"/v1/batches",
		strings.NewReader(batchOf(t, `{}`)),
	)
	require.NoError(t, err)
	req.Header = http.Header{
		"Authorization":   {"Bearer " + f.secret},
		"Content-Type":    {"application/json"},
		"Idempotency-Key": {""},
	}
	res, err := f.client.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusBadRequest, res.StatusCode, "empty key")
	require.Empty(t, f.store.writes())
	f.accepted(f.repeat(strings.Repeat("~", 256), batchOf(t, `{}`)))
}

// TestRepeatWithAnotherQuery: a request with another query is another request, so its key is refused.
func TestRepeatWithAnotherQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	for path, c := range map[string]struct {
		query, body string
		status      int
	}{
		"/v1/suppressions": {"?everyone=true", `{"email": "ann@example.com"}`, http.StatusCreated},
		"/v1/endpoints":    {"?installation=true", `{"url": "https://example.com/hook"}`, http.StatusCreated},
		"/v1/batches":      {"?mode=permissive", batchOf(t, `{}`), http.StatusAccepted},
	} {
		post := func(query string) *reply {
			t.Helper()
			return f.do(http.MethodPost, path+query, "application/json", strings.NewReader(c.body), "Idempotency-Key", "k")
		}
		require.Equal(t, c.status, post("").Status, path)
		require.Equal(t, "true", post("").Header.Get("Idempotency-Replayed"), path)
		require.Equal(t, "idempotency_key_reused", post(c.query).problem(t).Code, path)
	}
}

// TestRefusedRequestFreesKey: a refused request does not use up its key.
func TestRefusedRequestFreesKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.Equal(t, http.StatusUnprocessableEntity, f.repeat("k", batchOf(t, `{"to": []}`)).Status)
	f.accepted(f.repeat("k", batchOf(t, `{}`)))
}

// TestConcurrentRepeats: two processes with one store get the same request many times at once,
// and accept one batch.
func TestConcurrentRepeats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := *f
	g.serve(Config{})
	body := batchOf(t, `{"to": [`+numbered(0, 2500)+`]}`)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]bool{}
	for i := range 12 {
		wg.Go(func() {
			process := f
			if i%2 == 1 {
				process = &g
			}
			for {
				r := process.repeat("k", body)
				if r.Status == http.StatusConflict || r.Status == http.StatusServiceUnavailable {
					continue // retry as a client does
				}
				mu.Lock()
				defer mu.Unlock()
				ids[string(r.Body)] = true
				return
			}
		})
	}
	wg.Wait()
	require.Len(t, ids, 1)
	require.Len(t, read[batchList](f, "/v1/batches").Batches, 1)
}

// TestRepeatAfterCrash: wherever the first attempt ended between the claim and the answer, the
// repeat finishes the same batch.
func TestRepeatAfterCrash(t *testing.T) {
	t.Parallel()
	body := batchOf(t, `{"to": [`+numbered(0, 2500)+`]}`)
	once := func(f func() error) func(int) error {
		return func(n int) error {
			if n == 1 {
				return f()
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		call string
		fail func() error
	}{
		"before the agenda": {"Schedule", func() error { panic("killed") }},
		"among the chunks":  {"PutChunk", func() error { return context.Canceled }},
		"before the batch":  {"PutBatch", func() error { panic("killed") }},
		"unknown outcome":   {"PutBatch", func() error { return models.ErrUnavailable }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var claimed models.ID
			f.store.failing(c.call, once(c.fail))
			require.GreaterOrEqual(t, f.repeat("k", body).Status, 500)
			if c.call != "Schedule" {
				claimed = f.store.tried[0]
			}
			a, _, _ := f.accepted(f.repeat("k", body))
			if c.call != "Schedule" {
				require.Equal(t, claimed, a.ID)
			}
			require.Len(t, slices.Compact(slices.Clone(f.store.tried)), 1, "only one batch was begun")
			require.Equal(t, "true", f.repeat("k", body).Header.Get("Idempotency-Replayed"))
			require.Len(t, read[batchList](f, "/v1/batches").Batches, 1)
		})
	}
	t.Run("answer not stored", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.store.failing("PutAnswer", once(func() error { return models.ErrUnavailable }))
		first, second := f.repeat("k", body), f.repeat("k", body)
		a, _, _ := f.accepted(first)
		b, _, _ := f.accepted(second)
		require.Equal(t, a, b)
		require.JSONEq(t, string(first.Body), string(second.Body))
		require.Len(t, f.store.tried, 1, "nothing is stored twice")
	})
	t.Run("batch removed", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.store.failing("PutBatch", once(func() error { return models.ErrNotFound }))
		require.Equal(t, "intake_too_slow", f.repeat("k", body).problem(t).Code)
		a, _, _ := f.accepted(f.repeat("k", body))
		require.NotEqual(t, f.store.tried[0], a.ID, "the removed batch cannot be stored any more")
	})
}

// TestRepeatWhileRunning: a repeat of a running request gets 409 with Retry-After.
func TestRepeatWhileRunning(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	began, proceed := make(chan struct{}), make(chan struct{})
	var first sync.Once
	f.store.before("PutBatch", func() { first.Do(func() { close(began); <-proceed }) })
	var r *reply
	var wg sync.WaitGroup
	wg.Go(func() { r = f.repeat("k", batchOf(t, `{}`)) })
	<-began
	busy := f.repeat("k", batchOf(t, `{}`))
	require.Equal(t, http.StatusConflict, busy.Status)
	require.Equal(t, "request_running", busy.problem(t).Code)
	require.NotEmpty(t, busy.Header.Get("Retry-After"))
	require.Equal(t, "idempotency_key_reused", f.repeat("k", batchOf(t, `{"subject": "x"}`)).problem(t).Code)
	close(proceed)
	wg.Wait()
	a, _, _ := f.accepted(r)
	b, _, _ := f.accepted(f.repeat("k", batchOf(t, `{}`)))
	require.Equal(t, a.ID, b.ID)
}

// TestStaleRepeat: the repeat of an accepted request is accepted, even if the sender was
// forbidden since. If the first attempt did not store the batch, the repeat is refused and
// nothing is sent.
func TestStaleRepeat(t *testing.T) {
	t.Parallel()
	forbid := func(f *fixture) {
		svc := f.serve(Config{})
		op := service.Caller{By: "boss", Operator: true}
		_, _, err := svc.People.SetSenders(f.Context(), op, f.user, []string{"other@example.com"}, "", service.Repeat{})
		require.NoError(f, err)
		require.Equal(f, "sender_not_allowed", f.repeat("another", batchOf(t, `{}`)).problem(t).Errors[0].Code)
	}
	t.Run("answered", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		a, _, _ := f.accepted(f.repeat("k", batchOf(t, `{}`)))
		forbid(f)
		r := f.repeat("k", batchOf(t, `{}`))
		b, _, _ := f.accepted(r)
		require.Equal(t, a.ID, b.ID)
		require.Equal(t, "true", r.Header.Get("Idempotency-Replayed"))
	})
	t.Run("stored, answer lost", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.store.failing("PutAnswer", func(int) error { return models.ErrUnavailable })
		a, _, _ := f.accepted(f.repeat("k", batchOf(t, `{}`)))
		f.store.failing("PutAnswer", func(int) error { return nil })
		forbid(f)
		b, _, _ := f.accepted(f.repeat("k", batchOf(t, `{}`)))
		require.Equal(t, a.ID, b.ID)
	})
	t.Run("not stored", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.store.failing("PutBatch", func(n int) error {
			if n == 1 {
				panic("killed")
			}
			return nil
		})
		body := batchOf(t, `{"to": [`+numbered(0, 2500)+`]}`)
		require.GreaterOrEqual(t, f.repeat("k", body).Status, 500)
		forbid(f)
		require.Equal(t, http.StatusUnprocessableEntity, f.repeat("k", body).Status)
		_, err := f.store.Recipients(t.Context(), f.store.tried[0].Chunk(1))
		require.ErrorIs(t, err, models.ErrNotFound)
		require.Empty(t, read[batchList](f, "/v1/batches").Batches)
	})
	t.Run("another request", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accepted(f.repeat("k", batchOf(t, `{}`)))
		require.Equal(t, "idempotency_key_reused", f.repeat("k", batchOf(t, `{"to": []}`)).problem(t).Code)
	})
}
