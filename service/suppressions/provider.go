package suppressions

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// ProviderSuppressions returns a page of what a provider suppresses and we do not, as it was last read, in an order
// that means nothing.
func (s *Lists) ProviderSuppressions(
	ctx context.Context, who caller.Caller, provider string, p operation.Page,
) (out client.ProviderSuppressionPage, err error) {
	if _, err := s.listsOf(who, provider); err != nil {
		return out, err
	}
	var q operation.Query
	list := "listed at " + provider
	n, after := q.Limit(p), after(&q, p, list)
	if err := q.Err(); err != nil {
		return out, err
	}
	key := ""
	if p.Cursor != "" {
		key = drift.KeyOf(after.Hash, after.Category, string(after.Reason))
	}
	found, last, err := drift.Show(ctx, s.Store, provider, key, n)
	if err != nil {
		return out, problem.FromStore("read what a provider suppresses", err)
	}
	out.Suppressions = make([]client.ProviderSuppression, 0, len(found))
	for i := range found {
		e := &found[i]
		v := client.ProviderSuppression{
			Email: e.Email, List: e.List, Reason: string(e.Reason), Category: e.Category, Text: e.Text, At: e.At,
		}
		if e.Removed != nil {
			v.RemovedBy, v.RemovedWhy = e.Removed.By, e.Removed.Why
		}
		out.Suppressions = append(out.Suppressions, v)
	}
	if last != "" {
		k := models.SuppressionKey{}
		var reason string
		k.Hash, k.Category, reason = drift.ParseKey(last)
		k.Reason = models.SuppressionReason(reason)
		out.Next = afterCursor(list, k)
	}
	return out, nil
}

// listsOf returns the suppression lists of a provider to an operator.
func (s *Lists) listsOf(who caller.Caller, provider string) (models.ProviderLists, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	switch api := s.ByProvider[provider]; {
	case !s.Known[provider]:
		return nil, problem.NoSuch("provider")
	case api == nil:
		return nil, problem.New(problem.Conflict, "no_provider_lists",
			"This kind of provider keeps no suppression lists that can be read.")
	default:
		return api, nil
	}
}

// ClearProviderSuppression removes an address from a suppression list of a provider, or from all if list is empty.
// It is no error if they do not have it.
func (s *Lists) ClearProviderSuppression(
	ctx context.Context, who caller.Caller, provider, email, list, why string,
) error {
	if err := errors.Join(who.NeedOperator(), audit.CheckWhy(why)); err != nil {
		return err
	}
	api, err := s.listsOf(who, provider)
	if err != nil {
		return err
	}
	a, err := intake.ParseAddress(email)
	if err != nil {
		return problem.NoSuch("suppression")
	}
	lists := slices.DeleteFunc(api.Lists(), func(l models.ProviderList) bool { return list != "" && l.Name != list })
	if len(lists) == 0 {
		var q operation.Query
		q.Bad("list", "The provider has no list %s.", problem.Quote(list))
		return q.Err()
	}
	hash := models.HashAddress(a.Email)
	c := models.Command{Kind: models.ProviderUnlist, Provider: provider, Subject: hex.EncodeToString(hash[:]), Why: why}
	if _, err := s.Audit.Append(ctx, who, &c, nil); err != nil {
		return err
	}
	for _, l := range lists {
		if err := api.Unlist(ctx, l.Name, a.Email); errors.Is(err, models.ErrNoLists) {
			return problem.New(problem.Conflict, "provider_lists_refused",
				"The key of this provider may not change its suppression lists. Give it the permission at the provider.").
				Because(err)
		} else if err != nil {
			return problem.New(problem.Unavailable, "provider_unavailable",
				"The provider did not remove the address: %s.", err).After(30)
		}
	}
	err = drift.Forget(ctx, s.Store, a.Email, func(e *drift.Entry) bool {
		return e.Provider == provider && (list == "" || e.List == list)
	})
	return problem.FromStore("forget what a provider suppresses", err)
}

// noteListed stores that a provider still suppresses the address of an entry of everyone's list that came from
// there and is being removed.
func (s *Lists) noteListed(ctx context.Context, e *models.Suppression) error {
	if e.Origin != models.FromProvider || e.Email == "" {
		return nil
	}
	list, text, _ := strings.Cut(e.Why, ": ")
	err := drift.Note(ctx, s.Store, &drift.Entry{
		Email:    e.Email,
		Provider: e.By,
		List:     list,
		Category: e.Category,
		Reason:   e.Reason,
		Text:     text,
		At:       e.At,
		Seen:     time.Now().UTC(),
	})
	return problem.FromStore("note what a provider suppresses", err)
}
