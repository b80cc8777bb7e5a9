package login

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// Accounts says who may log in, and who is an operator.
type Accounts struct {
	store  web.Store
	log    *slog.Logger
	github *githubLogin // nil: users log in by one-time links
}

// NewAccounts returns the accounts of a GitHub app. If there is none, everybody with a one-time link may log in.
func NewAccounts(store web.Store, log *slog.Logger, g *GitHub, public *url.URL) *Accounts {
	a := &Accounts{store: store, log: log}
	if g != nil {
		a.github = newGitHubLogin(*g, public)
	}
	return a
}

// SetGitHub replaces the client secret and the lists of operators, logins and organisations, from the next request on.
// Nothing else changes.
func (a *Accounts) SetGitHub(g GitHub) {
	if a.github != nil {
		a.github.changed.Store(&g)
	}
}

// Origin returns the origin that the login form redirects to; "" if it redirects to none.
func (a *Accounts) Origin() string {
	if a.github == nil {
		return ""
	}
	return a.github.origin
}

// Operator reports whether a session belongs to an operator: a GitHub user in the
// current configuration, or anyone with a one-time link if GitHub is not used.
func (a *Accounts) Operator(s *web.Session) bool {
	if s.Login == "" {
		return a.github == nil
	}
	return a.github != nil && inList(a.github.listed().Operators, s.User, s.Login)
}

// Allowed reports whether the user of a session may still log in: it is listed in the
// current configuration, or still a member of an organisation.
func (a *Accounts) Allowed(ctx context.Context, v *web.Visitor, secret string) (bool, error) {
	switch {
	case v.Login == "":
		return a.github == nil, nil
	case a.github == nil:
		return false, nil
	case a.github.listed().lists(v.User, v.Login):
		return true, nil
	case v.Token == "" || len(a.github.listed().Orgs) == 0:
		return false, nil
	}
	return a.stillMember(ctx, v, secret)
}

// memberAge is how long a membership counts without asking GitHub again. While GitHub
// cannot be reached, it counts for memberMost.
const (
	memberAge  = 30 * time.Minute
	memberMost = time.Hour
)

func memberKind(user string) string { return "member." + user }

// stillMember reports whether the user of a session is a member of an organisation.
func (a *Accounts) stillMember(ctx context.Context, v *web.Visitor, secret string) (bool, error) {
	raw, err := a.store.Transient(ctx, memberKind(v.User), v.ID)
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return false, web.StoreTrouble(err)
	}
	known := err == nil
	if asked, err := time.Parse(time.RFC3339, string(raw)); known && err == nil && time.Since(asked) < memberAge {
		return true, nil
	}
	token, ok := v.OpenToken(secret)
	if !ok {
		return false, nil
	}
	member, err := a.github.member(ctx, token)
	switch {
	case err != nil && known:
		a.log.Warn("GitHub cannot be asked for a membership; will retry", "user_id", v.User, "err", err)
		return true, nil
	case err != nil:
		e := service.Fail(service.Unavailable, "github_unavailable",
			"GitHub could not be asked whether you may use this page. Try again in a moment.")
		return false, e.Because(err)
	case member:
		return true, web.StoreTrouble(a.noteMember(ctx, v.User, v.ID))
	}
	return false, nil
}

// noteMember records that GitHub confirmed the membership of a session's user.
func (a *Accounts) noteMember(ctx context.Context, user, hash string) error {
	return a.store.PutTransient(ctx, memberKind(user), hash, []byte(time.Now().UTC().Format(time.RFC3339)), memberMost)
}
