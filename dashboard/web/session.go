package web

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
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
	"github.com/safedelivr/safedelivr/service/people"
)

// Store is the part of models.Store that sessions need.
type Store interface {
	CreateUser(ctx context.Context, u models.User) error
	User(ctx context.Context, id string) (models.User, error)
	UserByName(ctx context.Context, name string) (models.User, error)
	Claim(ctx context.Context, key string, c models.Claim, ttl time.Duration) (models.Claim, error)
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

const (
	sessionIdle = 24 * time.Hour      // a session ends after so long without a request
	sessionLife = 30 * 24 * time.Hour // a session ends after so long at most
	sessionNote = 5 * time.Minute     // minimum interval between updates of the last use
)

// Session is one browser's login. It never changes. The time of its last use is stored separately, so that updating it
// cannot restore a session that has ended.
type Session struct {
	User    string    `json:"user"`
	Name    string    `json:"name"`            // name of the user
	Login   string    `json:"login,omitempty"` // at GitHub; "": by a one-time link
	Token   string    `json:"token,omitempty"` // GitHub token of a member of an organisation, sealed
	Began   time.Time `json:"began"`
	Browser string    `json:"browser,omitempty"`
	Address string    `json:"address,omitempty"`
	UpTo    int       `json:"up_to,omitempty"` // commands that the session has seen: a later one may end it
}

// Visitor is a user who is logged in.
type Visitor struct {
	Session
	ID       string // hash of the session's secret
	Operator bool
	Everyone bool // lists have everybody's mail; only for operators
}

// Caller returns the visitor as a caller of the service.
func (v *Visitor) Caller() service.Caller {
	return service.Caller{User: v.User, Operator: v.Operator, Everyone: v.Everyone}
}

// Sessions stores sessions under the hash of a secret that only the browser has.
type Sessions struct{ store Store }

// begin stores a session and returns the value of its cookie. It seals the session's token, so that only the browser's
// cookie opens it.
func (s *Sessions) begin(ctx context.Context, v Session) (string, error) {
	secret := NewSecret()
	hash := models.HashSecret(secret)
	if v.Token != "" {
		v.Token = seal(v.Token, secret)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if err := s.note(ctx, v.User, hash, v.Began); err != nil {
		return "", err
	}
	if err := s.store.PutTransient(ctx, people.SessionKind(v.User), hash, raw, sessionLife); err != nil {
		return "", fmt.Errorf("begin session: %w", err)
	}
	return v.User + "." + secret, nil
}

func (s *Sessions) note(ctx context.Context, user, hash string, now time.Time) error {
	return s.store.PutTransient(ctx, people.SessionUseKind(user), hash, []byte(now.UTC().Format(time.RFC3339)),
		sessionIdle)
}

// find returns the session of a cookie, its secret and its last use, or models.ErrNotFound.
func (s *Sessions) find(ctx context.Context, cookie string) (v Session, secret string, seen time.Time, err error) {
	user, secret, ok := strings.Cut(cookie, ".")
	if !ok || user == "" || len(secret) != SecretLength {
		return Session{}, "", seen, models.ErrNotFound
	}
	v, seen, err = s.read(ctx, user, models.HashSecret(secret))
	return v, secret, seen, err
}

// read returns a session by its hash and the time of its last use, or models.ErrNotFound.
func (s *Sessions) read(ctx context.Context, user, hash string) (v Session, seen time.Time, err error) {
	at, err := s.store.Transient(ctx, people.SessionUseKind(user), hash)
	if err != nil {
		return v, seen, err
	}
	raw, err := s.store.Transient(ctx, people.SessionKind(user), hash)
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

// End ends a session.
func (s *Sessions) End(ctx context.Context, user, hash string) error {
	if err := s.store.PutTransient(ctx, people.SessionKind(user), hash, nil, 0); err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return s.store.PutTransient(ctx, people.SessionUseKind(user), hash, nil, 0)
}

// OpenSession is a session in a list.
type OpenSession struct {
	Session
	ID   string
	Seen time.Time
	Here bool // it is the visitor's own
}

// List returns all open sessions of a user, newest first.
func (s *Sessions) List(ctx context.Context, user string) ([]OpenSession, error) {
	all, err := s.store.Transients(ctx, people.SessionKind(user))
	if err != nil {
		return nil, err
	}
	seen, err := s.store.Transients(ctx, people.SessionUseKind(user))
	if err != nil {
		return nil, err
	}
	var out []OpenSession
	for hash, raw := range all {
		o := OpenSession{ID: hash}
		at, open := seen[hash]
		if !open || json.Unmarshal(raw, &o.Session) != nil {
			continue // idle for too long
		}
		if o.Seen, err = time.Parse(time.RFC3339, string(at)); err == nil {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b OpenSession) int { return b.Began.Compare(a.Began) })
	return out, nil
}

// SecretLength is the length of what NewSecret returns.
const SecretLength = 43

// NewSecret returns 256 random bits.
func NewSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// cookieName returns the name of the session cookie. With TLS, no other host and no plain connection can set a cookie
// of that name.
func (f *Frame) cookieName(r *http.Request) string {
	if f.secure(r) {
		return "__Host-sd_session"
	}
	return "sd_session"
}

// SetCookie sets a cookie for a time, or removes it if the time is 0.
func (f *Frame) SetCookie(w http.ResponseWriter, r *http.Request, name, value string, life time.Duration) {
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
		Secure:   f.secure(r),
		SameSite: http.SameSiteLaxMode,
	})
}

// Visitor returns the visitor of a request, or models.ErrNotFound if there is no session. It records that the session
// is in use.
func (f *Frame) Visitor(r *http.Request) (*Visitor, error) {
	v, seen, err := f.peek(r)
	if now := time.Now(); err == nil && now.Sub(seen) > sessionNote {
		err = StoreTrouble(f.Sessions.note(r.Context(), v.User, v.ID, now))
	}
	return v, err
}

// Accounts say who may use the pages.
type Accounts interface {
	// Origin returns the origin that the login form redirects to; "" if it redirects to none.
	Origin() string
	// Operator reports whether a session belongs to an operator.
	Operator(s *Session) bool
	// Allowed reports whether the user of a session may still log in. secret opens its token.
	Allowed(ctx context.Context, v *Visitor, secret string) (bool, error)
}

// peek returns the visitor of a request and the last use of the session. It ends the session of a user who may no
// longer log in, and one that a command has ended.
func (f *Frame) peek(r *http.Request) (*Visitor, time.Time, error) {
	c, err := r.Cookie(f.cookieName(r))
	if err != nil {
		return nil, time.Time{}, models.ErrNotFound
	}
	s, secret, seen, err := f.Sessions.find(r.Context(), c.Value)
	if err != nil {
		return nil, seen, StoreTrouble(err)
	}
	v := &Visitor{Session: s, ID: models.HashSecret(secret), Operator: f.Accounts.Operator(&s)}
	v.Everyone = v.Operator && wantsEveryone(r)
	ended, err := f.People.SessionEnded(r.Context(), v.User, v.UpTo)
	if err != nil {
		return nil, seen, err
	}
	allowed := !ended
	if allowed {
		allowed, err = f.Accounts.Allowed(r.Context(), v, secret)
	}
	switch {
	case err != nil:
		return nil, seen, err
	case !allowed:
		if err := f.Sessions.End(r.Context(), v.User, v.ID); err != nil {
			return nil, seen, StoreTrouble(err)
		}
		f.Log.Info("session ended", "user_id", v.User, "by_command", ended)
		return nil, seen, models.ErrNotFound
	}
	return v, seen, nil
}

// StoreTrouble returns the error for a page whose session could not be read or changed.
func StoreTrouble(err error) error {
	if err == nil || errors.Is(err, models.ErrNotFound) {
		return err
	}
	e := service.Fail(service.Unavailable, "store_unavailable", "The store cannot be reached. Try again in a moment.").After(5)
	return e.Because(err)
}

// seal encrypts a text with a secret.
func seal(text, secret string) string {
	sealed := sealer(secret).Seal(nil, nil, []byte(text), nil) //nolint:gosec // it chooses the nonce itself
	return base64.RawStdEncoding.EncodeToString(sealed)
}

// OpenToken returns the GitHub token of a session. ok is false if there is none, or if the secret is of another
// session.
func (s *Session) OpenToken(secret string) (token string, ok bool) {
	raw, err := base64.RawStdEncoding.DecodeString(s.Token)
	if err != nil {
		return "", false
	}
	out, err := sealer(secret).Open(nil, nil, raw, nil)
	return string(out), err == nil
}

func sealer(secret string) cipher.AEAD {
	key := sha256.Sum256([]byte("github token " + secret))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the right block size
	}
	return aead
}

// BeginSession begins a session of a browser.
func (f *Frame) BeginSession(w http.ResponseWriter, r *http.Request, s Session) error {
	value, err := f.Sessions.begin(r.Context(), s)
	if err == nil {
		f.SetCookie(w, r, f.cookieName(r), value, sessionLife)
	}
	return err
}

// ForgetSession removes the cookie of a session, and what the browser has kept of the pages.
func (f *Frame) ForgetSession(w http.ResponseWriter, r *http.Request) {
	f.SetCookie(w, r, f.cookieName(r), "", 0)
	w.Header().Set("Clear-Site-Data", `"cache", "storage"`)
}
