package dashboard

import (
	"context"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/service"
)

// providersView is all provider accounts, side by side.
type providersView struct {
	Accounts []providerView
	Flow     chart
}

// providerView is one account: how it is, and what became of the visitor's mail
// through it.
type providerView struct {
	accountNow
	Mine service.AccountCounts // of the last 30 days
}

// providers is GET /providers.
func (d *Dashboard) providers(w http.ResponseWriter, r *http.Request, v *visitor) error {
	view, err := d.readProviders(r.Context(), v.caller())
	if err != nil {
		return err
	}
	d.render(w, r, v, http.StatusOK, "providers", page{Title: "Providers", Active: "providers", Live: "/live/providers", Charts: true, Data: view})
	return nil
}

// providersEvents is GET /live/providers.
func (d *Dashboard) providersEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	who := v.caller()
	return d.stream(w, r, v, eventsKey("providers ", who.User), func() source {
		return source{
			read:   func(ctx context.Context) (any, error) { return d.readProviders(ctx, who) },
			render: func(now any) (parts, error) { return d.pages.parts("providers", now, "rates", "compare", "accounts") },
		}
	})
}

func (d *Dashboard) readProviders(ctx context.Context, who service.Caller) (*providersView, error) {
	accounts, err := d.accountsNow()
	if err != nil {
		return nil, err
	}
	today := time.Now().UTC()
	stats, err := d.service.Stats(ctx, who, today.AddDate(0, 0, 1-overviewDays).Format(time.DateOnly), today.Format(time.DateOnly))
	if err != nil {
		return nil, err
	}
	v := &providersView{}
	var names []string
	for i := range accounts {
		names = append(names, accounts[i].Name)
		v.Accounts = append(v.Accounts, providerView{accountNow: accounts[i], Mine: stats.Totals.Accounts[accounts[i].Name]})
	}
	v.Flow = d.flow(names)
	return v, nil
}
