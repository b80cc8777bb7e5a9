package dashboard

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
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/people"
)

const (
	sessionIdle = 24 * time.Hour      // a session ends after so long without a request
	sessionLife = 30 * 24 * time.Hour // a session ends after so long at most
	sessionNote = 5 * time.Minute     // minimum interval between updates of the last use
)

// session is one browser's login. It never changes. The time of its last use is
// stored separately, so that updating it cannot restore a session that has ended.
type session struct {
	User    string    `json:"user"`
	Name    string    `json:"name"`            // name of the user
	Login   string    `json:"login,omitempty"` // at GitHub; "": by a one-time link
	Token   string    `json:"token,omitempty"` // GitHub token of a member of an organisation, sealed
	Began   time.Time `json:"began"`
	Browser string    `json:"browser,omitempty"`
	Address string    `json:"address,omitempty"`
	UpTo    int       `json:"up_to,omitempty"` // commands that the session has seen: a later one may end it
}

// visitor is a user who is logged in.
type visitor struct {
	session
	ID       string // hash of the session's secret
	Operator bool
	Everyone bool // lists have everybody's mail; only for operators
}

// caller returns the visitor as a caller of the service.
func (v *visitor) caller() service.Caller {
	return service.Caller{User: v.User, Operator: v.Operator, Everyone: v.Everyone}
}

// sessions stores sessions under the hash of a secret that only the browser has.
type sessions struct{ store Store }

func sessionKind(user string) string { return people.SessionKind(user) }
func seenKind(user string) string    { return people.SessionUseKind(user) }

// begin stores a session and returns the value of its cookie. It seals the session's
// token, so that only the browser's cookie opens it.
func (s *sessions) begin(ctx context.Context, v session) (string, error) {
	secret := newSecret()
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
	if err := s.store.PutTransient(ctx, sessionKind(v.User), hash, raw, sessionLife); err != nil {
		return "", fmt.Errorf("begin session: %w", err)
	}
	return v.User + "." + secret, nil
}

func (s *sessions) note(ctx context.Context, user, hash string, now time.Time) error {
	return s.store.PutTransient(ctx, seenKind(user), hash, []byte(now.UTC().Format(time.RFC3339)), sessionIdle)
}

// find returns the session of a cookie, its secret and its last use, or
// models.ErrNotFound.
func (s *sessions) find(ctx context.Context, cookie string) (v session, secret string, seen time.Time, err error) {
	user, secret, ok := strings.Cut(cookie, ".")
	if !ok || user == "" || len(secret) != secretLength {
		return session{}, "", seen, models.ErrNotFound
	}
	v, seen, err = s.read(ctx, user, models.HashSecret(secret))
	return v, secret, seen, err
}

// read returns a session by its hash and the time of its last use, or
// models.ErrNotFound.
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

// openSession is a session in a list.
type openSession struct {
	session
	ID   string
	Seen time.Time
	Here bool // it is the visitor's own
}

// list returns all open sessions of a user, newest first.
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

const secretLength = 43 // length of newSecret's result

// newSecret returns 256 random bits.
func newSecret() string {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("dashboard: no randomness: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// cookieName returns the name of the session cookie. With TLS, no other host and no
// plain connection can set a cookie of that name.
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

// visitor returns the visitor of a request, or models.ErrNotFound if there is no session.
// It records that the session is in use.
func (d *Dashboard) visitor(r *http.Request) (*visitor, error) {
	v, seen, err := d.peek(r)
	if now := time.Now(); err == nil && now.Sub(seen) > sessionNote {
		err = storeTrouble(d.sessions.note(r.Context(), v.User, v.ID, now))
	}
	return v, err
}

// peek returns the visitor of a request and the last use of the session. It ends the
// session of a user who may no longer log in, and one that a command has ended.
func (d *Dashboard) peek(r *http.Request) (*visitor, time.Time, error) {
	c, err := r.Cookie(d.cookieName(r))
	if err != nil {
		return nil, time.Time{}, models.ErrNotFound
	}
	s, secret, seen, err := d.sessions.find(r.Context(), c.Value)
	if err != nil {
		return nil, seen, storeTrouble(err)
	}
	v := &visitor{session: s, ID: models.HashSecret(secret), Operator: d.operator(&s)}
	v.Everyone = v.Operator && wantsEveryone(r)
	ended, err := d.service.People.SessionEnded(r.Context(), v.User, v.UpTo)
	if err != nil {
		return nil, seen, err
	}
	allowed := !ended
	if allowed {
		allowed, err = d.allowed(r.Context(), v, secret)
	}
	switch {
	case err != nil:
		return nil, seen, err
	case !allowed:
		if err := d.sessions.end(r.Context(), v.User, v.ID); err != nil {
			return nil, seen, storeTrouble(err)
		}
		d.log.Info("session ended", "user_id", v.User, "by_command", ended)
		return nil, seen, models.ErrNotFound
	}
	return v, seen, nil
}

// storeTrouble returns the error for a page whose session could not be read or changed.
func storeTrouble(err error) error {
	if err == nil || errors.Is(err, models.ErrNotFound) {
		return err
	}
	e := service.Fail(service.Unavailable, "store_unavailable", "The store cannot be reached. Try again in a moment.")
	return e.Because(err)
}

// operator reports whether a session belongs to an operator: a GitHub user in the
// current configuration, or anyone with a one-time link if GitHub is not used.
func (d *Dashboard) operator(s *session) bool {
	if s.Login == "" {
		return d.github == nil
	}
	return d.github != nil && inList(d.github.listed().Operators, s.User, s.Login)
}

// allowed reports whether the user of a session may still log in: it is listed in the
// current configuration, or still a member of an organisation.
func (d *Dashboard) allowed(ctx context.Context, v *visitor, secret string) (bool, error) {
	switch {
	case v.Login == "":
		return d.github == nil, nil
	case d.github == nil:
		return false, nil
	case d.github.listed().lists(v.User, v.Login):
		return true, nil
	case v.Token == "" || len(d.github.listed().Orgs) == 0:
		return false, nil
	}
	return d.stillMember(ctx, v, secret)
}

// memberAge is how long a membership counts without asking GitHub again. While GitHub
// cannot be reached, it counts for memberMost.
const (
	memberAge  = 30 * time.Minute
	memberMost = time.Hour
)

func memberKind(user string) string { return "member." + user }

// stillMember reports whether the user of a session is a member of an organisation.
func (d *Dashboard) stillMember(ctx context.Context, v *visitor, secret string) (bool, error) {
	raw, err := d.store.Transient(ctx, memberKind(v.User), v.ID)
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return false, storeTrouble(err)
	}
	known := err == nil
	if asked, err := time.Parse(time.RFC3339, string(raw)); known && err == nil && time.Since(asked) < memberAge {
		return true, nil
	}
	token, ok := unseal(v.Token, secret)
	if !ok {
		return false, nil
	}
	member, err := d.github.member(ctx, token)
	switch {
	case err != nil && known:
		d.log.Warn("GitHub cannot be asked for a membership; will retry", "user_id", v.User, "err", err)
		return true, nil
	case err != nil:
		e := service.Fail(service.Unavailable, "github_unavailable",
			"GitHub could not be asked whether you may use this page. Try again in a moment.")
		return false, e.Because(err)
	case member:
		return true, storeTrouble(d.noteMember(ctx, v.User, v.ID))
	}
	return false, nil
}

// noteMember records that GitHub confirmed the membership of a session's user.
func (d *Dashboard) noteMember(ctx context.Context, user, hash string) error {
	return d.store.PutTransient(ctx, memberKind(user), hash, []byte(time.Now().UTC().Format(time.RFC3339)), memberMost)
}

// seal encrypts a text with a secret.
func seal(text, secret string) string {
	sealed := sealer(secret).Seal(nil, nil, []byte(text), nil) //nolint:gosec // it chooses the nonce itself
	return base64.RawStdEncoding.EncodeToString(sealed)
}

// unseal reverses seal. ok is false if the text was sealed with another secret.
func unseal(sealed, secret string) (text string, ok bool) {
	raw, err := base64.RawStdEncoding.DecodeString(sealed)
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

// login records a login, begins a session and ends the browser's previous one. The account is
// the user's at GitHub; nil: the user has a one-time link. It refuses a disabled user.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request, u models.User, account *githubUser) error {
	if old, err := d.visitor(r); err == nil {
		if err := d.sessions.end(r.Context(), old.User, old.ID); err != nil {
			return err
		}
	}
	upTo, err := d.service.People.AdmitSession(r.Context(), u.ID)
	if err != nil {
		return err
	}
	s := session{
		UpTo:    upTo,
		User:    u.ID,
		Name:    u.Name,
		Began:   time.Now().UTC(),
		Browser: browserName(r.UserAgent()),
		Address: clientAddr(r),
	}
	done := accesslog.Event{Kind: accesslog.Login, Reason: "link", User: u.ID, Address: s.Address}
	if account != nil {
		s.Login, s.Token = account.Login, account.token
		done.Reason, done.Login = "github", account.Login
	}
	if err := d.service.People.RecordAccess(r.Context(), done); err != nil {
		return err
	}
	value, err := d.sessions.begin(r.Context(), s)
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
	w.Header().Set("Clear-Site-Data", `"cache", "storage"`)
	seeOther(w, r, "/login")
}

// browserName names a browser and its system, for the list of sessions.
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
