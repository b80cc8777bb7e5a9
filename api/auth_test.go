package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// routes holds a route of each kind that needs a key. %s is the ID of a batch, %l that of a
// log.
var routes = []string{
	"POST /v1/batches",
	"GET /v1/batches",
	"GET /v1/batches/%s",
	"GET /v1/batches/%s/logs",
	"GET /v1/logs/%l",
	"GET /v1/stats",
	"GET /v1/providers",
}

// fill returns the method and the path of a route.
func fill(route string, batch models.ID) (method, path string) {
	route = strings.NewReplacer("%s", batch.String(), "%l", batch.Log(1).String()).Replace(route)
	method, path, _ = strings.Cut(route, " ")
	return method, path
}

// TestKeys: each route refuses a missing, an unknown and a revoked key.
func TestKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	revoked, secret := models.NewKey(f.user, "old", time.Now())
	require.NoError(t, f.store.CreateKey(t.Context(), revoked))
	require.NoError(t, f.store.RevokeKey(t.Context(), f.user, revoked.ID, time.Now()))
	_, unknown := models.NewKey(f.user, "not stored", time.Now())
	for name, c := range map[string]struct{ header, code string }{
		"none":           {"", "no_key"},
		"empty":          {"Bearer ", "no_key"},
		"another scheme": {"Basic " + f.secret, "no_key"},
		"no scheme":      {f.secret, "no_key"},
		"no key at all":  {"Bearer letmein", "wrong_key"},
		"unknown":        {"Bearer " + unknown, "wrong_key"},
		"one off":        {"Bearer " + f.secret[:len(f.secret)-1] + "!", "wrong_key"},
		"revoked":        {"Bearer " + secret, "revoked_key"},
	} {
		for _, route := range routes {
			t.Run(name+" "+route, func(t *testing.T) {
				t.Parallel()
				method, path := fill(route, models.NewBatchID(time.Now()))
				r := f.with(t).do(method, path, "application/json", strings.NewReader(batchOf(t, `{}`)), "Authorization", c.header)
				require.Equal(t, http.StatusUnauthorized, r.Status)
				require.Equal(t, c.code, r.problem(t).Code)
				require.Contains(t, r.Header.Get("WWW-Authenticate"), "Bearer")
			})
		}
	}
	t.Run("the scheme in any case", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, http.StatusOK, f.with(t).get("/v1/batches", "Authorization", "bEARER  "+f.secret+" ").Status)
	})
	t.Cleanup(func() { require.Empty(t, f.store.writes()) })
}

// TestRevocation: a key that is in use is refused a second after it was revoked.
func TestRevocation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, inBubble)
		require.Equal(t, http.StatusOK, f.get("/v1/batches").Status)
		keys, err := f.store.Keys(t.Context(), f.user)
		require.NoError(t, err)
		require.NoError(t, f.store.RevokeKey(t.Context(), f.user, keys[0].ID, time.Now()))
		time.Sleep(time.Second)
		r := f.get("/v1/batches")
		require.Equal(t, http.StatusUnauthorized, r.Status)
		require.Equal(t, "revoked_key", r.problem(t).Code)
	})
}

// TestOthersThingsAreNotFound: a thing of another user has the same answer as one that does
// not exist.
func TestOthersThingsAreNotFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _, _ := f.accepted(f.post(batchOf(t, `{}`)))
	absent := models.NewBatchID(time.Now())
	for _, route := range routes {
		if !strings.ContainsRune(route, '%') {
			continue
		}
		method, path := fill(route, a.ID)
		require.Equal(t, http.StatusOK, f.do(method, path, "", nil).Status, route)
		foreign := f.do(method, path, "", nil, "Authorization", "Bearer "+f.foreign)
		_, path = fill(route, absent)
		missing := f.do(method, path, "", nil)
		p, q := foreign.problem(t), missing.problem(t)
		require.Equal(t, "not_found", p.Code, route)
		p.RequestID, q.RequestID = "", ""
		require.Equal(t, q, p, "the answer does not reveal whether the thing exists")
	}
	f.secret = f.foreign
	require.Empty(t, read[batchList](f, "/v1/batches").Batches)
}

// TestStatusCodes checks the status and the code of requests that are refused.
func TestStatusCodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) { s.cfg.MaxBody, s.service.Content, s.service.Recipients = 2000, 500, 3 })
	id := models.NewBatchID(time.Now())
	for name, c := range map[string]struct {
		method, path, kind, body string
		header                   []string
		status                   int
		code                     string
	}{
		"no route":       {method: "GET", path: "/v2", status: 404, code: "no_such_route"},
		"trailing slash": {method: "GET", path: "/v1/batches/", status: 404, code: "no_such_route"},
		"wrong method":   {method: "DELETE", path: "/v1/batches", status: 405, code: "method_not_allowed"},
		"no batch id":    {method: "GET", path: "/v1/batches/7", status: 404, code: "not_found"},
		"log id as batch": {
			method: "GET",
			path:   "/v1/batches/" + id.Log(1).String(),
			status: 404,
			code:   "not_found",
		},
		"id in upper case": {
			method: "GET",
			path:   "/v1/batches/" + strings.ToUpper(id.String()),
			status: 404,
			code:   "not_found",
		},
		"batch id as log": {method: "GET", path: "/v1/logs/" + id.String(), status: 404, code: "not_found"},
		"no type":         {method: "POST", path: "/v1/batches", body: "{}", status: 415, code: "wrong_type"},
		"wrong type": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "text/plain",
			body:   "{}",
			status: 415,
			code:   "wrong_type",
		},
		"broken type": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json; x",
			body:   "{}",
			status: 415,
			code:   "wrong_type",
		},
		"encoded": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json",
			body:   "{}",
			header: []string{"Content-Encoding", "gzip"},
			status: 415,
			code:   "wrong_encoding",
		},
		"large by its length": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json",
			body:   strings.Repeat(" ", 2001),
			status: 413,
			code:   "body_too_large",
		},
		"content in JSON": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json",
			body:   `{"text": "` + strings.Repeat("x", 300) + `", "html": "` + strings.Repeat("x", 201) + `"}`,
			status: 413,
			code:   "content_too_large",
		},
		"content in a form": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/x-www-form-urlencoded",
			body:   "text=" + strings.Repeat("x", 501),
			status: 413,
			code:   "content_too_large",
		},
		"recipients in JSON": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json",
			body:   batchOf(t, `{"to": ["a@b.de", "bad", 5, "d@b.de"]}`),
			status: 413,
			code:   "too_many_recipients",
		},
		"recipients in a form": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/x-www-form-urlencoded",
			body:   "to=a@b.de,b@b.de,c@b.de,d@b.de",
			status: 413,
			code:   "too_many_recipients",
		},
		"bad JSON": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json",
			body:   `{"from": }`,
			status: 400,
			code:   "bad_json",
		},
		"escaped bytes count once": {
			method: "POST",
			path:   "/v1/batches",
			kind:   "application/json",
			body:   `{"text": "` + strings.Repeat(`\u0041`, 280) + `"}`,
			status: 422,
			code:   "invalid_request",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f.with(t).do(c.method, c.path, c.kind, strings.NewReader(c.body), c.header...)
			require.Equal(t, c.status, r.Status, string(r.Body))
			require.Equal(t, c.code, r.problem(t).Code)
			require.Equal(t, c.status == 405, r.Header.Get("Allow") != "")
		})
	}
	for name, c := range map[string]struct{ kind, body string }{
		"JSON": {"application/json", `{"to": [` + strings.Repeat(" ", 2000) + `]}`},
		"form": {"application/x-www-form-urlencoded", "to=" + strings.Repeat(",", 2000)},
		"escapes": {
			"application/x-www-form-urlencoded",
			"from=" + strings.Repeat("a", 400) + "&to=" + strings.Repeat("%2C", 600),
		},
		"multipart": {
			"multipart/form-data; boundary=X",
			"--X\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\n" + strings.Repeat(",", 2000) + "\r\n--X--\r\n",
		},
		"epilogue": {"multipart/form-data; boundary=X", "--X--\r\n" + strings.Repeat(" ", 9000)},
	} {
		t.Run("too large, unknown length, "+name, func(t *testing.T) {
			t.Parallel()
			r := f.with(t).do("POST", "/v1/batches", c.kind, struct{ *strings.Reader }{strings.NewReader(c.body)})
			require.Equal(t, "body_too_large", r.problem(t).Code, string(r.Body))
		})
	}
	t.Cleanup(func() { require.Empty(t, f.store.writes()) })
}

// TestRequestID: a request has an ID of its own, or that of the client if it is safe to log.
func TestRequestID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.get("/v1/nothing"), f.get("/v1/nothing")
	require.NotEqual(t, one.problem(t).RequestID, two.problem(t).RequestID)
	require.Equal(t, "my-Own_1.2", f.get("/healthz", "X-Request-Id", "my-Own_1.2").Header.Get("X-Request-Id"))
	for _, bad := range []string{"a b", "a<b", strings.Repeat("a", 65)} {
		require.NotEqual(t, bad, f.get("/healthz", "X-Request-Id", bad).Header.Get("X-Request-Id"))
	}
}

// TestStoreUnavailable: each route answers 503 with Retry-After while the store is unavailable.
func TestStoreUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _, _ := f.accepted(f.post(batchOf(t, `{}`)))
	f.store.setDown(true)
	for _, forget := range []bool{false, true} { // whether the key is cached
		for _, route := range routes {
			if strings.HasSuffix(route, "/providers") && !forget {
				continue // reads only the key from the store
			}
			if forget {
				f.serve(Config{})
			}
			method, path := fill(route, a.ID)
			r := f.do(method, path, "application/json", strings.NewReader(batchOf(t, `{}`)))
			require.Equal(t, http.StatusServiceUnavailable, r.Status, route)
			require.Equal(t, "store_unavailable", r.problem(t).Code)
			require.NotEmpty(t, r.Header.Get("Retry-After"))
			require.NotContains(t, string(r.Body), models.ErrUnavailable.Error()+":", "the answer shows no internal error")
		}
	}
	f.store.setDown(false)
	require.Len(t, read[batchList](f, "/v1/batches").Batches, 1, "nothing was stored")
}

// TestAnswerToFailedWrite checks the answer for each outcome of the write of a batch.
func TestAnswerToFailedWrite(t *testing.T) {
	t.Parallel()
	other := errors.New("something else")
	answers := func(errs ...error) func(int) error {
		return func(n int) error { return errs[min(n, len(errs))-1] }
	}
	for name, c := range map[string]struct {
		put    func(int) error
		status int
		code   string
	}{
		"always unknown":            {answers(models.ErrOutcomeUnknown), 503, "acceptance_unknown"},
		"unknown, then unavailable": {answers(models.ErrOutcomeUnknown, models.ErrUnavailable), 503, "acceptance_unknown"},
		"undefined error":           {answers(other), 503, "acceptance_unknown"},
		"unknown, then stored":      {answers(models.ErrOutcomeUnknown, models.ErrOutcomeUnknown, nil), 202, ""},
		"unknown, then abandoned":   {answers(models.ErrOutcomeUnknown, models.ErrNotFound), 503, "intake_too_slow"},
		"unavailable":               {answers(models.ErrUnavailable), 503, "store_unavailable"},
		"abandoned":                 {answers(models.ErrNotFound), 503, "intake_too_slow"},
		"closed":                    {answers(models.ErrClosed), 503, "store_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.store.failing("PutBatch", c.put)
			if c.code == "acceptance_unknown" {
				f.giveUpSoon()
			}
			r := f.post(batchOf(t, `{}`))
			if c.status == 202 {
				f.accepted(r)
				return
			}
			p := r.problem(t)
			require.Equal(t, c.status, r.Status)
			require.Equal(t, c.code, p.Code)
			require.NotEmpty(t, r.Header.Get("Retry-After"))
			if c.code != "acceptance_unknown" {
				require.Empty(t, p.BatchID)
				return
			}
			id, err := models.ParseBatchID(p.BatchID)
			require.NoError(t, err)
			require.Equal(t, http.StatusNotFound, f.get(batchPath(id)).Status, "the answer has the ID to look up")
		})
	}
	for name, call := range map[string]string{"the agenda": "Schedule", "a chunk": "PutChunk"} {
		t.Run("earlier write fails: "+name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.store.failing(call, answers(models.ErrOutcomeUnknown))
			p := f.post(batchOf(t, `{"to": [`+numbered(0, 3000)+`]}`)).problem(t)
			require.Equal(t, "store_unavailable", p.Code)
			require.NotContains(t, f.store.writes(), "PutBatch")
			require.Empty(t, read[batchList](f, "/v1/batches").Batches)
		})
	}
}

// TestPanicIsNotShown: a panic is answered with status 500 and without its value.
func TestPanicIsNotShown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.store.before("BatchIDs", func() { panic("secret") })
	r := f.get("/v1/batches")
	require.Equal(t, http.StatusInternalServerError, r.Status)
	require.Equal(t, "internal", r.problem(t).Code)
	require.NotContains(t, string(r.Body), "secret")
}
