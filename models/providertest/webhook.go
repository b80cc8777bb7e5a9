package providertest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Verify verifies a post.
func Verify(p models.Adapter, h http.Header, body []byte, at time.Time) (replay string, err error) {
	v, err := p.Verify(context.Background(), &models.Webhook{Method: http.MethodPost, Header: h, Body: body, At: at})
	return v.Replay, err
}

func testVerify(t *testing.T, s Suite) {
	p := adapter(t, s, "http://127.0.0.1:1")
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	body := s.Post(batch.Log(1), 1)
	h, signed := s.Sign(body, now)
	if _, err := Verify(p, h, signed, now); err != nil {
		t.Fatalf("a good post is refused: %v", err)
	}
	if err := p.VerifyHeader(&models.Webhook{Header: h, At: now}); err != nil {
		t.Errorf("the header of a good post is refused: %v", err)
	}
	if most := p.MaxWebhook(); most < 1<<20 || most > 16<<20 {
		t.Errorf("the largest post has %d bytes", most)
	}
	old, signedOld := s.SignOld(body, now)
	if _, err := Verify(p, old, signedOld, now); err != nil {
		t.Errorf("a post that is signed with the old key is refused: %v", err)
	}
	h.Set("Content-Type", "application/octet-stream")
	if _, err := Verify(p, h, signed, now); err != nil {
		t.Errorf("another content type: %v", err)
	}
	h, forged := s.Forge(body, now)
	if e := refusedPost(t, p, "signed with another key", h, forged, now); e.Code != "bad_signature" {
		t.Errorf("signed with another key: code %q", e.Code)
	}
	refusedPost(t, p, "not signed", http.Header{}, body, now)
	refusedPost(t, p, "empty", http.Header{}, nil, now)
	if !s.Secret {
		testSignature(t, s, p, now)
	}
	h, signed = s.Sign(body, now)
	for name := range h {
		for i := range h.Get(name) {
			changed := h.Clone()
			v := []byte(h.Get(name))
			v[i] ^= 1
			changed.Set(name, string(v))
			if _, err := Verify(p, changed, signed, now); err == nil && !strings.EqualFold(name, "Content-Type") {
				t.Fatalf("byte %d of %s was changed and the post is still verified", i, name)
			}
		}
	}
	// A repeat has the same replay key.
	first, _ := Verify(p, h, signed, now)
	if again, _ := Verify(p, h, signed, now.Add(time.Hour)); again != first || s.Secret && first != "" {
		t.Errorf("the same post replays %q and %q", first, again)
	}
}

// refusedPost checks that a post is refused, and by its header in the same way as by the whole.
func refusedPost(
	t *testing.T, p models.Adapter, name string, h http.Header, body []byte, now time.Time,
) *models.WebhookError {
	t.Helper()
	_, err := Verify(p, h, body, now)
	var refusal, early *models.WebhookError
	if !errors.As(err, &refusal) {
		t.Errorf("%s: got %v, want a *models.WebhookError", name, err)
		return &models.WebhookError{}
	}
	if refusal.Status < 400 || refusal.Code == "" {
		t.Errorf("%s: refused with status %d, code %q", name, refusal.Status, refusal.Code)
	}
	err = p.VerifyHeader(&models.Webhook{Header: h, At: now})
	if err != nil && (!errors.As(err, &early) || *early != *refusal) {
		t.Errorf("%s: refused with %v by its header, with %v as a whole", name, err, refusal)
	}
	return refusal
}

// testSignature checks that a signature is fresh, unless it has no time, and covers the body or has a replay key.
func testSignature(t *testing.T, s Suite, p models.Adapter, now time.Time) {
	body := s.Post(batch.Log(1), 1)
	h, signed := s.Sign(body, now)
	if !s.Timeless {
		testFresh(t, s, p, now)
	}
	replay, _ := Verify(p, h, signed, now)
	for i := range signed {
		changed := bytes.Clone(signed)
		changed[i] ^= 1
		if got, err := Verify(p, h, changed, now); err == nil && (replay == "" || got == "") {
			t.Fatalf("byte %d was changed and nothing shows it", i)
		}
	}
}

// testFresh checks that a signature holds for a while, and only for its time and its body.
func testFresh(t *testing.T, s Suite, p models.Adapter, now time.Time) {
	body := s.Post(batch.Log(1), 1)
	shifted, rest := s.Shift(s.Sign(body, now))
	refusedPost(t, p, "shifted", shifted, rest, now)
	for _, age := range []time.Duration{26 * time.Hour, -2 * time.Hour, 30 * 24 * time.Hour} {
		h, signed := s.Sign(body, now.Add(-age))
		if e := refusedPost(t, p, "stale", h, signed, now); e.Code != "stale" || e.Status == http.StatusNotAcceptable {
			t.Errorf("signed %v ago: code %q, status %d; it may be our clock, so the provider must repeat", age, e.Code,
				e.Status)
		}
	}
	for _, age := range []time.Duration{23 * time.Hour, 5 * time.Minute, -30 * time.Minute} {
		h, signed := s.Sign(body, now.Add(-age))
		if _, err := Verify(p, h, signed, now); err != nil {
			t.Errorf("signed %v ago: %v", age, err)
		}
	}
}

func testParse(t *testing.T, s Suite) {
	p := adapter(t, s, "http://127.0.0.1:1")
	for _, n := range []int{1, 500, 1000} {
		body := s.Post(batch.Chunk(3).Log(n), 7)
		got := p.Parse(body)
		if len(got.Events) != 1 || len(got.Skipped) != 0 {
			t.Fatalf("%d events, skipped %q", len(got.Events), got.Skipped)
		}
		e := got.Events[0]
		if e.Log != batch.Chunk(3).Log(n) || e.Event.Attempt != 7 || e.Event.Kind != models.Delivered || e.Event.ID == "" ||
			e.Event.At.IsZero() {
			t.Errorf("got %+v", e)
		}
		if again := p.Parse(body); again.Events[0] != e {
			t.Errorf("the same post says %+v and %+v", e, again.Events[0])
		}
	}
	// Events of other mails must be skipped.
	ours := s.Post(batch.Log(1), 7)
	id := []byte(batch.Log(1).String())
	for _, foreign := range []string{"", "01930000-0000-7000-8abc-def000000000", strings.ToUpper(string(id)),
		"01930000-0000-4000-8abc-def000000001", "null", "x"} {
		got := p.Parse(bytes.ReplaceAll(ours, id, []byte(foreign)))
		if len(got.Events) != 0 || len(got.Skipped) != 1 {
			t.Errorf("log %q: %d events, skipped %q", foreign, len(got.Events), got.Skipped)
		}
	}
	for _, attempt := range []int{0, -1, 1_000_001} {
		if got := p.Parse(s.Post(batch.Log(1), attempt)); len(got.Events) != 0 || len(got.Skipped) != 1 {
			t.Errorf("attempt %d: %d events, skipped %q", attempt, len(got.Events), got.Skipped)
		}
	}
}

// testTagged parses posts that name a chunk and an address. They have the ID of the post that names the log. A post
// without an address names no recipient.
func testTagged(t *testing.T, s Suite) {
	if s.Tagged == nil {
		return
	}
	p := adapter(t, s, "http://127.0.0.1:1")
	chunk := batch.Chunk(3)
	named := p.Parse(s.Post(chunk.Log(5), 7)).Events[0]
	got := p.Parse(s.Tagged(chunk, 7, strings.ToUpper(named.Address)))
	if len(got.Events) != 1 || got.Events[0].Log != chunk || got.Events[0].Event != named.Event ||
		!strings.EqualFold(got.Events[0].Address, named.Address) {
		t.Errorf("%+v names %+v in another way", got, named)
	}
	other := p.Parse(s.Tagged(chunk, 7, "other@rcpt.test")).Events
	if len(other) != 1 || other[0].Event.ID == named.Event.ID {
		t.Errorf("the event of another address is %+v", other)
	}
	for _, body := range [][]byte{
		s.Tagged(chunk, 7, ""), s.Tagged(chunk.Log(5), 7, "a@b.test"), s.Tagged(models.ID{}, 7, "a@b.test"),
		s.Tagged(chunk, 0, "a@b.test"), s.Tagged(chunk, 1_000_001, "a@b.test"),
	} {
		if got := p.Parse(body); len(got.Events) != 0 || len(got.Skipped)+len(got.Unnamed) != 1 {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

func testMixed(t *testing.T, s Suite) {
	p := adapter(t, s, "http://127.0.0.1:1")
	got := p.Parse(s.Mixed)
	if len(got.Events) != s.MixedGood {
		t.Errorf("%d good events, want %d; skipped %q", len(got.Events), s.MixedGood, got.Skipped)
	}
	sound(t, got)
}

// sound checks what must be true of all results of Parse.
func sound(t testing.TB, got models.Parsed) {
	t.Helper()
	for _, e := range got.Events {
		v := e.Event
		if !v.Kind.Valid() || v.ID == "" || v.Attempt < 1 || e.Log.Recipient() < 1 && e.Address == "" ||
			len(v.Text) > models.MaxText ||
			strings.Contains(v.Text, "@") ||
			v.Reason != "" && !v.Reason.Known() || v.Kind.Failure() && v.Reason == "" {
			t.Errorf("event %+v", e)
		}
	}
	for _, line := range got.Skipped {
		if line == "" || strings.ContainsAny(line, "@\n") {
			t.Errorf("skipped line %q", line)
		}
	}
}

// Sound checks what must be true of all results of Parse. It is for fuzz tests.
func Sound(t testing.TB, got models.Parsed) { t.Helper(); sound(t, got) }

func testParseGarbage(t *testing.T, s Suite) {
	p := adapter(t, s, "http://127.0.0.1:1")
	now := time.Now()
	feed := func(body []byte) {
		sound(t, p.Parse(body))
		_, _ = Verify(p, http.Header{}, body, now)
	}
	for _, text := range []string{"", " ", "null", "[]", "{}", "[null]", "[1,2]", "[[[]]]", `["a"]`, "[{}]", "[,]", "]",
		"}", `{"event-data":7}`, `{"event-data":[]}`,
		`{"signature":7,"event-data":null}`, "\x00", "\xff\xfe", strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 1<<18),
		strings.Repeat("[{", 1<<18), `[{"event":`} {
		feed([]byte(text))
	}
	for _, seed := range [][]byte{s.Post(batch.Log(1), 1), s.Mixed} {
		for cut := range min(len(seed), 4000) {
			feed(seed[:cut])
			feed(seed[cut:])
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			body := bytes.Clone(seed)
			for range 1 + rng.IntN(4) {
				body[rng.IntN(len(body))] = byte(rng.IntN(256))
			}
			feed(body)
		}
	}
}
