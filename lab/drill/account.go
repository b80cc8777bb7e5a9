package drill

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// account is a user of the drill.
type account struct {
	models.User
	secret string // of its key
	client *client.Client
	smtp   string      // where it can send by SMTP
	logged []published // the logs that were counted
}

// newAccount creates a user of servers, with a key that has all scopes: the drill reads queues and gives commands.
func (e *environment) newAccount(ctx context.Context, of *servers) (account, error) {
	a := account{User: models.User{ID: models.NewUserID(), Created: time.Now().UTC()}}
	a.Name = "rehearse-" + a.ID
	key, secret := models.NewKey(a.ID, "rehearse", time.Now())
	key.Scopes = []models.Scope{models.ScopeSend, models.ScopeRead, models.ScopeOperate}
	a.secret, a.client = secret, client.New("http://"+of.addr, secret)
	a.smtp = of.smtpAddr
	return a, e.withStore(ctx, func(s models.Store) error {
		if err := s.CreateUser(ctx, a.User); err != nil {
			return err
		}
		return s.CreateKey(ctx, key)
	})
}

func (a *account) batch(ctx context.Context, id models.ID) (client.Batch, error) {
	return a.client.Batch(ctx, id.String())
}

// logs returns all logs of a batch.
func (a *account) logs(ctx context.Context, id models.ID) (out []client.Log, err error) {
	for l, err := range a.client.Logs(ctx, id.String(), client.LogOptions{}) {
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// timeline returns what happened to a mail.
func (a *account) timeline(ctx context.Context, log string) ([]client.Moment, error) {
	l, err := a.client.Log(ctx, log)
	return l.Timeline, err
}
