package dashboard

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// providersView is the page of all providers.
type providersView struct {
	Providers []providerView
	Flow      chart
	History   *historyView
	Tabs      []tab // ranges of the history
}

// providerView is one provider, and the visitor's mail through it.
type providerView struct {
	providerNow
	Mine    service.ProviderCounts // the visitor's counts of the last 30 days
	Switch  control.ProviderMode
	Actions []actionLink // commands that the visitor may give now
}

// providers is GET /providers.
func (d *Dashboard) providers(w http.ResponseWriter, r *http.Request, v *visitor) error {
	back := service.HistoryRange(r.URL.Query().Get("range"))
	view, err := d.readProviders(r.Context(), v.caller(), back)
	if err != nil {
		return err
	}
	d.render(w, r, v, http.StatusOK, "providers", page{
		Title:  "Providers",
		Active: "providers",
		Live:   "/live/providers?range=" + string(view.History.Range),
		Charts: true,
		Data:   view,
	})
	return nil
}

// providersEvents is GET /live/providers.
func (d *Dashboard) providersEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	who := v.caller()
	back := service.HistoryRange(r.URL.Query().Get("range"))
	if _, ok := historyWords[back]; !ok {
		back = service.LastHour
	}
	return d.stream(w, r, v, eventsKey("providers ", who.User, " ", who.Operator, " ", back), func() source {
		return source{
			read: func(ctx context.Context) (any, error) { return d.readProviders(ctx, who, back) },
			render: func(now any) (parts, error) {
				ps, err := d.pages.parts("providers", now, "rates", "compare", "providers")
				if view, ok := now.(*providersView); ok && err == nil {
					maps.Copy(ps, view.History.parts) // rendered once for all pages
				}
				return ps, err
			},
		}
	})
}

func (d *Dashboard) readProviders(
	ctx context.Context,
	who service.Caller,
	back service.HistoryRange,
) (*providersView, error) {
	providers, err := d.providersNow()
	if err != nil {
		return nil, err
	}
	today := time.Now().UTC()
	stats, err := d.service.Stats(
		ctx,
		who,
		today.AddDate(0, 0, 1-overviewDays).Format(time.DateOnly),
		today.Format(time.DateOnly),
	)
	if err != nil {
		return nil, err
	}
	switches, err := d.service.ProviderModes(ctx)
	if err != nil {
		return nil, err
	}
	history, err := d.history(ctx, back)
	if err != nil {
		return nil, err
	}
	v := &providersView{History: history, Tabs: historyTabs(history.Range)}
	var names []string
	for i := range providers {
		names = append(names, providers[i].Name)
		p := providerView{
			providerNow: providers[i],
			Mine:        stats.Totals.Providers[providers[i].Name],
			Switch:      switches[providers[i].Name],
		}
		if who.Operator {
			p.Actions = switchesOf(p.Switch.Mode)
			if suspended(p.Health) {
				p.Actions = append([]actionLink{{"probe", "Test now"}}, p.Actions...)
			}
		}
		v.Providers = append(v.Providers, p)
	}
	v.Flow = d.flow(names)
	return v, nil
}

// suspended reports whether a provider is suspended, for all mail or for some senders. A
// probe ends that.
func suspended(h *telemetry.Health) bool {
	return h != nil && (h.State == telemetry.Suspended || len(h.Senders) > 0 && h.State != telemetry.Offline)
}

// switchesOf lists the modes that a provider can be switched to.
func switchesOf(mode models.CommandKind) []actionLink {
	all := []actionLink{{"offline", "Take offline"}, {"drain", "Drain"}, {"online", "Bring online"}}
	return slices.DeleteFunc(all, func(a actionLink) bool { return providerActions[a.Do] == mode })
}
