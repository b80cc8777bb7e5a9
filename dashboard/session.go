package dashboard

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// How long sessions last: so long without a request, and so long at most. A
// session's use is noted no more often than sessionNote.
const (
	sessionIdle = 24 * time.Hour
	sessionLife = 30 * 24 * time.Hour
	sessionNote = 5 * time.Minute
)

// session is one browser's login. It never changes; when it was used last is a
// record of its own, so that noting that can never bring back an ended session.
type session struct {
	User    string    `json:"user"`
	Name    string    `json:"name"`            // of the user
	Login   string    `json:"login,omitempty"` // at GitHub, when it began; empty: by a one-time link
	Began   time.Time `json:"began"`
	Browser string    `json:"browser,omitempty"`
	Address string    `json:"address,omitempty"`
}

// visitor is somebody who is logged in.
type visitor struct {
	session
	ID       string // hash of the session's secret
	Operator bool
}

// caller is the visitor as the service sees it: everything that is the user's
// own, and for operators everything that is everybody's.
func (v *visitor) caller() service.Caller { return service.Caller{User: v.User, Operator: v.Operator} }

// sessions keeps sessions in the store: under the hash of a secret that only the
// browser has.
type sessions struct{ store Store }

func sessionKind(user string) string { return "session." + user }
func seenKind(user string) string    { return "seen." + user }

// begin makes a session and returns the cookie's value.
func (s *sessions) begin(ctx context.Context, v session) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	secret := newSecret()
	hash := models.HashSecret(secret)
	if err := s.note(ctx, v.User, hash, v.Began); err != nil {
		return "", err
	}
	if err := s.store.PutTransient(ctx, sessionKind(v.User), hash, raw, sessionLife); err != nil {
		return "", fmt.Errorf("begin session: %w", err)
	}
	return v.User + "." + secret, nil
}

func (s *sessions) note(ctx context.Context, user, hash string, now time.Time) error {
	return s.store.PutTransient(ctx, seenKind(user), hash, []byte(now.UTC().Format(time.RFC3339)), sessionIdle)
}

// find reads the session of a cookie. Errors: models.ErrNotFound.
func (s *sessions) find(ctx context.Context, cookie string, now time.Time) (session, string, error) {
	user, secret, ok := strings.Cut(cookie, ".")
	if !ok || user == "" || len(secret) != secretLength {
		return session{}, "", models.ErrNotFound
	}
	hash := models.HashSecret(secret)
	v, seen, err := s.read(ctx, user, hash)
	if err == nil && now.Sub(seen) > sessionNote {
		err = s.note(ctx, user, hash, now)
	}
	return v, hash, err
}

// read reads a session by its hash. Errors: models.ErrNotFound.
func (s *sessions) read(ctx context.Context, user, hash string) (v session, seen time.Time, err error) {
	at, err := s.store.Transient(ctx, seenKind(user), hash)
	if err != nil {
		return v, seen, err
	}
	raw, err := s.store.Transient(ctx, sessionKind(user), hash)
	if err != nil {
		return v, seen, err
	}
	if seen, err = time.Parse(time.RFC3339, string(at)); err != nil {
		return v, seen, fmt.Errorf("session: %w", err)
	}
	if err = json.Unmarshal(raw, &v); err == nil && v.User != user {
		err = models.ErrNotFound
	}
	return v, seen, err
}

// end ends a session.
func (s *sessions) end(ctx context.Context, user, hash string) error {
	if err := s.store.PutTransient(ctx, sessionKind(user), hash, nil, 0); err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return s.store.PutTransient(ctx, seenKind(user), hash, nil, 0)
}

// openSession is a session in the list of a user's.
type openSession struct {
	session
	ID   string
	Seen time.Time
	Here bool // the one that asks
}

// list reads all open sessions of a user, the newest first.
func (s *sessions) list(ctx context.Context, user string) ([]openSession, error) {
	all, err := s.store.Transients(ctx, sessionKind(user))
	if err != nil {
		return nil, err
	}
	seen, err := s.store.Transients(ctx, seenKind(user))
	if err != nil {
		return nil, err
	}
	var out []openSession
	for hash, raw := range all {
		o := openSession{ID: hash}
		at, open := seen[hash]
		if !open || json.Unmarshal(raw, &o.session) != nil {
			continue // idle for too long
		}
		if o.Seen, err = time.Parse(time.RFC3339, string(at)); err == nil {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b openSession) int { return b.Began.Compare(a.Began) })
	return out, nil
}

const secretLength = 43 // of newSecret

// newSecret returns 256 random bits.
func newSecret() string {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("dashboard: no randomness: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// cookieName is that of the session's cookie: with TLS one that no other host
// and no plain connection can set.
func (d *Dashboard) cookieName(r *http.Request) string {
	if d.secure(r) {
		return "__Host-sd_session"
	}
	return "sd_session"
}

func (d *Dashboard) setCookie(w http.ResponseWriter, r *http.Request, name, value string, life time.Duration) {
	age := int(life.Seconds())
	if life <= 0 {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure if the request came by TLS
		Name:     name,
		Value:    value,
		Path:     "/",
		MaxAge:   age,
		HttpOnly: true,
		Secure:   d.secure(r),
		SameSite: http.SameSiteLaxMode,
	})
}

// visitor finds who is there. Errors: models.ErrNotFound (nobody).
func (d *Dashboard) visitor(r *http.Request) (*visitor, error) {
	c, err := r.Cookie(d.cookieName(r))
	if err != nil {
		return nil, models.ErrNotFound
	}
	s, hash, err := d.sessions.find(r.Context(), c.Value, time.Now())
	if err != nil {
		if errors.Is(err, models.ErrNotFound) {
			return nil, models.ErrNotFound
		}
		return nil, service.Fail(
			service.Unavailable,
			"store_unavailable",
			"The store cannot be reached. Try again in a moment.",
		).Because(
			err,
		)
	}
	return &visitor{session: s, ID: hash, Operator: d.operator(&s)}, nil
}

// operator reports whether a session is an operator's: as the configuration says
// now, or by a link that only this machine's console shows.
func (d *Dashboard) operator(s *session) bool {
	if s.Login == "" {
		return d.github == nil
	}
	return d.github != nil && d.github.operator(s.Login)
}

// login begins a session and ends the one the browser had before.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request, u models.User, githubLogin string) error {
	if old, err := d.visitor(r); err == nil {
		if err := d.sessions.end(r.Context(), old.User, old.ID); err != nil {
			return err
		}
	}
	value, err := d.sessions.begin(
		r.Context(),
		session{User: u.ID, Name: u.Name, Login: githubLogin, Began: time.Now().UTC(),
			Browser: browserName(r.UserAgent()), Address: clientAddr(r)},
	)
	if err != nil {
		return err
	}
	d.setCookie(w, r, d.cookieName(r), value, sessionLife)
	d.log.Info("logged in", "user_id", u.ID)
	return nil
}

// logout ends this browser's session.
func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	v, err := d.visitor(r)
	if err == nil {
		err = d.sessions.end(r.Context(), v.User, v.ID)
	}
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		d.fail(w, r, nil, err)
		return
	}
	d.setCookie(w, r, d.cookieName(r), "", 0)
	w.Header().Set("Clear-Site-Data", `"cache"`)
	seeOther(w, r, "/login")
}

// browserName is a word for a browser and its system, for the list of sessions.
func browserName(agent string) string {
	find := func(names [][2]string) string {
		for _, n := range names {
			if strings.Contains(agent, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	browser := find(
		[][2]string{
			{"Edg/", "Edge"},
			{"OPR/", "Opera"},
			{"Firefox/", "Firefox"},
			{"Chrome/", "Chrome"},
			{"Safari/", "Safari"},
		},
	)
	system := find(
		[][2]string{
			{"Android", "Android"},
			{"iPhone", "iPhone"},
			{"iPad", "iPad"},
			{"Mac OS X", "macOS"},
			{"Windows", "Windows"},
			{"Linux", "Linux"},
		},
	)
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	case browser+system != "":
		return browser + system
	}
	return "Unknown browser"
}
