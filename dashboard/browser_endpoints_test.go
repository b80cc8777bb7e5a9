//go:build browser

package dashboard

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	updates "github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service"
)

// TestBrowserEndpoints adds an endpoint, tests it, and removes it after the question; it looks at the pages.
func TestBrowserEndpoints(t *testing.T) {
	t.Parallel()
	f, app := endpointRig(t, http.StatusNoContent)
	b := f.logIn(f.url)
	b.open("/endpoints")
	b.sees("No endpoint yet.")
	eval[bool](b, `document.querySelector("details.data").open = true`)
	b.lookAround("endpoints-none", "")
	b.fill("url", app+"/hooks/mail")
	b.fill("description", "shop, production")
	for _, t := range []updates.Type{updates.Opened, updates.Bounced} {
		b.until(`((e) => e && (e.click(), true))(document.querySelector("input[name=events][value='` + string(t) + `']"))`)
	}
	boxes := `[...document.querySelectorAll("[data-group]:first-of-type .choices input")]`
	group := `document.querySelector("input[name=events][value^=\"log.\"][value*=\",\"]")`
	b.until(group + `.indeterminate`)
	require.True(t, eval[bool](b, `(`+group+`.click(), `+boxes+`.every((e) => e.checked))`))
	require.False(t, eval[bool](b, `(`+group+`.click(), `+boxes+`.some((e) => e.checked))`))
	for _, t := range []updates.Type{updates.Opened, updates.Bounced} {
		b.until(`((e) => e && (e.click(), true))(document.querySelector("input[name=events][value='` + string(t) + `']"))`)
	}
	b.press("Add")
	b.sees("Copy it now")
	b.sees("bounced, opened")
	b.lookAround("endpoint-new", "")
	b.press("Send a test post")
	b.sees("The test post was accepted: 204")

	list, err := f.service.Endpoints(service.Caller{}).List(t.Context(), login.LocalUser().ID)
	require.NoError(t, err)
	require.Len(t, list, 1)
	now := time.Now()
	_, err = endpoint.In(f.store).Change(t.Context(), login.LocalUser().ID, list[0].ID, func(e *endpoint.Endpoint) error {
		e.Events = []string{client.SuppressionAdded}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, updates.PublishSuppressions(t.Context(), f.store, login.LocalUser().ID, []models.FeedSuppression{{
		SuppressionKey: models.SuppressionKey{Reason: models.HardBounce}, Origin: models.FromEvent, At: now,
	}}))
	f.attempted(
		login.LocalUser().ID,
		list[0].ID,
		endpoint.Attempt{At: now, Post: "msg_0123456789abcdef0123456789abcdef", Updates: 1, Type: updates.Failed, Tried: 2,
			Part: endpoint.Part{To: updates.Position{Skip: 1}}, Log: "01937b5a-8c4e-7a31-9f00-1b2c00000001", Status: 503,
			Answer: "upstream connect error", Took: 31},
		endpoint.Attempt{
			At:      now.Add(-time.Minute),
			Post:    "msg_f123456789abcdef0123456789abcdef",
			Updates: 812,
			Status:  204,
			Took:    12,
		},
		endpoint.Attempt{At: now.Add(-time.Hour), Post: "msg_e123456789abcdef0123456789abcdef", Updates: 1,
			Type: updates.Opened, Log: "01937b5a-8c4e-7a31-9f00-1b2c00000002", Answer: "connection refused"},
	)
	b.lookAround("endpoint", "/endpoints/"+list[0].ID)
	b.lookAround("endpoint-post", "/endpoints/"+list[0].ID+"?post=msg_0123456789abcdef0123456789abcdef")
	b.sees("Webhook-Timestamp")
	b.press("Post again")
	b.sees("The post is made again.")
	b.lookAround("endpoints", "/endpoints")
	b.open("/endpoints/" + list[0].ID)
	b.press("Remove")
	b.press("Remove this endpoint")
	b.sees("No endpoint yet.")
}
