package suppressions

import (
	"context"
	"net/http"
	"net/url"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
)

// selection selects entries of a suppression list.
type selection struct {
	// Only entries with this reason.
	Reason string `query:"reason" schema:"SuppressionReason"`
	// Only entries of this category.
	Category string `query:"category"`
}

func (f *selection) filter() Filter {
	return Filter{Reason: f.Reason, Category: f.Category}
}

// ofAddress names an address by the last part of a path.
type ofAddress struct {
	// Address that the request is about.
	Email string `path:"email"`
}

type (
	suppressionSearch struct {
		selection
		// Only addresses that have this part.
		Part string `query:"q"`
		operation.Whose
		operation.Page
	}
	suppressionCreation struct {
		operation.Whose
		Body client.NewSuppression
	}
	suppressionsOf struct {
		ofAddress
		operation.Whose
	}
	suppressionRemoval struct {
		ofAddress
		selection
		// Reason for the audit trail.
		Why string `query:"why" max:"500"`
		operation.Whose
	}
)

// listsOfProvider names the suppression lists of a provider.
type listsOfProvider struct {
	// Name of the provider.
	ID string `path:"id"`
}

type (
	listedSearch struct {
		listsOfProvider
		operation.Page
	}
	listedRemoval struct {
		listsOfProvider
		ofAddress
		// Only from this list, like `bounces`. Default: from all.
		List string `query:"list"`
		// Reason for the audit trail.
		Why string `query:"why" max:"500"`
	}
)

const tagSuppressions = "suppressions"

// Operations returns the calls about suppression lists, and those of providers.
func Operations(s *Lists) []operation.Operation {
	return append(listOperations(s), providerListOperations(s)...)
}

func listOperations(s *Lists) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listSuppressions", Route: "GET /v1/suppressions", Tag: tagSuppressions, Scope: models.ScopeRead,
			Title: "List the suppressed addresses", Returns: "A page of the list.",
			Text: "The entries in effect of your own list, or with `everyone=true` of the list for the whole installation. " +
				"The order means nothing. A page reads at most 10,000 entries, so that a search may answer short pages, with a " +
				"`next_cursor`.",
		}, func(ctx context.Context, who caller.Caller, in *suppressionSearch) (client.SuppressionPage, error) {
			f := in.filter()
			f.Text = in.Part
			return s.List(ctx, who, f, in.Page)
		}),
		operation.Changing(operation.Operation{
			Name: "addSuppression", Route: "POST /v1/suppressions", Tag: tagSuppressions, Scope: models.ScopeSend,
			Status: http.StatusCreated, Title: "Suppress an address", Returns: "The entry.",
			Text: "No mail is sent to a suppressed address, through no provider: its logs fail with the reason `suppressed`. " +
				"When this is answered, no call to a provider begins any more that contains the address. Adding what is there " +
				"already changes nothing. With `everyone=true` it applies to the mail of all users.",
			Example: `{"email": "bob@example.com", "reason": "unsubscribe", "category": "newsletter", ` +
				`"expires_at": "2100-01-31T12:00:00Z", "why": "asked by telephone"}`,
			Location: func(out any) string {
				return "/v1/suppressions/" + url.PathEscape(out.(client.Suppression).Email) //nolint:forcetypeassert // Suppress returns it
			},
		}, func(
			ctx context.Context, who caller.Caller, in *suppressionCreation, r idempotency.Repeat,
		) (client.Suppression, bool, error) {
			from := models.FromAPI
			if who.Key == "" && who.By == "" { // a session
				from = models.FromPage
			}
			return s.Suppress(ctx, who, in.Body, from, r)
		}),
		operation.Reading(operation.Operation{
			Name: "getSuppressions", Route: "GET /v1/suppressions/{email}", Tag: tagSuppressions, Scope: models.ScopeRead,
			Title: "Get the entries of an address", Returns: "The entries.",
			Text: "The entries in effect of an address in your own list, or with `everyone=true` in the list for the whole " +
				"installation. The answer is 404 if there are none.",
		}, func(ctx context.Context, who caller.Caller, in *suppressionsOf) (client.SuppressionList, error) {
			list, err := s.Of(ctx, who, in.Email)
			return client.SuppressionList{Suppressions: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "removeSuppressions", Route: "DELETE /v1/suppressions/{email}", Tag: tagSuppressions,
			Scope: models.ScopeSend, Title: "Send to an address again", Returns: operation.ResultOfCommand,
			Errors: []int{http.StatusUnprocessableEntity},
			Text: "Removes the entries of an address, or only those with a reason or category. Failed mail is not sent by " +
				"this: retry its batch. Complaints and hard bounces are removed only with `why`, which the audit trail shows. If " +
				"they were removed before, nothing changes. The answer is 404 if there never were any.",
		}, func(ctx context.Context, who caller.Caller, in *suppressionRemoval) (client.ControlResult, error) {
			changed, err := s.Unsuppress(ctx, who, in.Email, in.filter(), in.Why)
			return operation.ResultOf(models.RemovedSuppression, in.Email, changed), err
		}),
	}
}

// providerListOperations are the calls about the suppression lists of providers.
func providerListOperations(s *Lists) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listProviderSuppressions", Route: "GET /v1/providers/{id}/suppressions", Tag: tagSuppressions,
			Scope: models.ScopeOperate, Title: "List what a provider suppresses and Safedelivr does not",
			Returns: "A page of addresses. It may be short although more follow.", Errors: []int{http.StatusConflict},
			Text: "Addresses on the suppression lists of the provider itself that no entry of everyone's list suppresses: " +
				"because the reason holds only there, like a full mailbox or SendGrid's blocks, or because a user removed the " +
				"entry here. As the lists were last read (`lists` of `/v1/providers`), in an order that means nothing. The " +
				"answer is 409 (`no_provider_lists`) if its kind keeps none.",
		}, func(ctx context.Context, who caller.Caller, in *listedSearch) (client.ProviderSuppressionPage, error) {
			return s.ProviderSuppressions(ctx, who, in.ID, in.Page)
		}),
		operation.Reading(operation.Operation{
			Name: "clearProviderSuppression", Route: "DELETE /v1/providers/{id}/suppressions/{email}", Tag: tagSuppressions,
			Scope: models.ScopeOperate, Title: "Remove an address from the suppression lists of a provider",
			Errors: []int{http.StatusConflict, http.StatusUnprocessableEntity},
			Text: "The provider delivers to the address again. The lists of Safedelivr stay as they are. If the provider does " +
				"not have the address, the answer is 204 as well. It is 409 (`provider_lists_refused`) if the provider's key may " +
				"not change its lists, and 503 (`provider_unavailable`) if the provider does not answer. The audit trail shows it.",
		}, func(ctx context.Context, who caller.Caller, in *listedRemoval) (operation.Nothing, error) {
			return operation.Nothing{}, s.ClearProviderSuppression(ctx, who, in.ID, in.Email, in.List, in.Why)
		}),
	}
}
