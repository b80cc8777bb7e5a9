package endpoints

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

// pointers returns the pointers of the mistakes that an error names.
func pointers(t *testing.T, err error) (out []string) {
	t.Helper()
	var e *problem.Error
	if errors.As(err, &e) {
		for _, f := range e.Fields {
			out = append(out, f.Pointer)
		}
		return out
	}
	require.NoError(t, err)
	return nil
}

// TestSettings: each mistake in the settings of an endpoint is named. The installation may have what users may not.
func TestSettings(t *testing.T) {
	t.Parallel()
	const ann, all = "ann", feed.Installation
	long := strings.Repeat("x", 2001)
	for name, c := range map[string]struct {
		owner  string
		change func(n *client.EndpointSettings)
		want   []string
	}{
		"nothing":            {ann, func(*client.EndpointSettings) {}, nil},
		"no address":         {ann, func(n *client.EndpointSettings) { n.URL = "" }, []string{"/url"}},
		"no URL":             {ann, func(n *client.EndpointSettings) { n.URL = "ftp://x.test" }, []string{"/url"}},
		"description":        {ann, func(n *client.EndpointSettings) { n.Description = "two\nlines" }, []string{"/description"}},
		"event":              {ann, func(n *client.EndpointSettings) { n.Events = []string{string(feed.Failed), "lost"} }, []string{"/events/1"}},
		"notice to a user":   {ann, func(n *client.EndpointSettings) { n.Events = []string{string(feed.FailoverEnded)} }, []string{"/events/0"}},
		"notice":             {all, func(n *client.EndpointSettings) { n.Events = []string{string(feed.FailoverEnded)} }, nil},
		"empty tag":          {ann, func(n *client.EndpointSettings) { n.Tags = []string{""} }, []string{"/tags/0"}},
		"tag":                {ann, func(n *client.EndpointSettings) { n.Tags = []string{"a"} }, nil},
		"tag of notices":     {all, func(n *client.EndpointSettings) { n.Tags = []string{"a"} }, []string{"/tags"}},
		"everyone":           {all, func(n *client.EndpointSettings) { n.Everyone, n.Tags = true, []string{"a"} }, nil},
		"everyone to a user": {ann, func(n *client.EndpointSettings) { n.Everyone = true }, []string{"/everyone"}},
		"rate":               {ann, func(n *client.EndpointSettings) { n.Rate = 1001 }, []string{"/rate"}},
		"negative rate":      {ann, func(n *client.EndpointSettings) { n.Rate = -1 }, []string{"/rate"}},
		"at once":            {ann, func(n *client.EndpointSettings) { n.AtOnce = 51 }, []string{"/at_once"}},
		"ordered at once":    {ann, func(n *client.EndpointSettings) { n.Ordered, n.AtOnce = true, 2 }, []string{"/at_once"}},
		"ordered, one":       {ann, func(n *client.EndpointSettings) { n.Ordered, n.AtOnce = true, 1 }, nil},
		"signature":          {ann, func(n *client.EndpointSettings) { n.Signature = "v2" }, []string{"/signature"}},
		"format of a user":   {ann, func(n *client.EndpointSettings) { n.Format = client.FormatSlack }, []string{"/format"}},
		"format":             {all, func(n *client.EndpointSettings) { n.Format = "fax" }, []string{"/format"}},
		"slack in batches":   {all, func(n *client.EndpointSettings) { n.Format, n.Batch = client.FormatSlack, true }, []string{"/batch"}},
		"sender of no mail":  {all, func(n *client.EndpointSettings) { n.Sender = "a@x.test" }, []string{"/sender"}},
		"mail": {all, func(n *client.EndpointSettings) {
			n.Format, n.URL, n.User, n.Sender = client.FormatMail, "mailto:ops@x.test", "ann", "a@x.test"
		}, nil},
		"mail without all":  {all, func(n *client.EndpointSettings) { n.Format = client.FormatMail }, []string{"/url", "/user", "/sender"}},
		"shape":             {ann, func(n *client.EndpointSettings) { n.Shape = client.ShapePostmark }, nil},
		"standard shape":    {all, func(n *client.EndpointSettings) { n.Shape, n.Format = client.ShapeStandard, client.FormatSlack }, nil},
		"unknown shape":     {ann, func(n *client.EndpointSettings) { n.Shape, n.Batch = "mandrill", true }, []string{"/shape"}},
		"shape of notices":  {all, func(n *client.EndpointSettings) { n.Shape = client.ShapeMailgun }, []string{"/shape"}},
		"shape of everyone": {all, func(n *client.EndpointSettings) { n.Shape, n.Everyone = client.ShapeMailgun, true }, nil},
		"shape and format": {all, func(n *client.EndpointSettings) { n.Shape, n.Format = client.ShapeMailgun, client.FormatSlack },
			[]string{"/shape"}},
		"list of SendGrid":  {ann, func(n *client.EndpointSettings) { n.Shape, n.Batch = client.ShapeSendGrid, true }, nil},
		"list of Resend":    {ann, func(n *client.EndpointSettings) { n.Shape, n.Batch = client.ShapeResend, true }, []string{"/batch"}},
		"secret of Mailgun": {ann, func(n *client.EndpointSettings) { n.Shape, n.Signature = client.ShapeMailgun, "v1" }, nil},
		"key pair of Resend": {ann, func(n *client.EndpointSettings) { n.Shape, n.Signature = client.ShapeResend, "v1a" },
			[]string{"/signature"}},
		"secret of SendGrid": {ann, func(n *client.EndpointSettings) { n.Shape, n.Signature = client.ShapeSendGrid, "v1" },
			[]string{"/signature"}},
		"no event of the shape": {ann, func(n *client.EndpointSettings) {
			n.Shape, n.Events = client.ShapeResend, []string{"all", "log.opened", "log.unsubscribed", "batch.done", "lost"}
		}, []string{"/events/4", "/events/2", "/events/3"}},
		"header of a shape": {ann, func(n *client.EndpointSettings) { n.Headers = map[string]string{"svix-id": "1"} },
			[]string{"/headers/svix-id"}},
		"header":           {ann, func(n *client.EndpointSettings) { n.Headers = map[string]string{"Authorization": "Bearer x"} }, nil},
		"reserved header":  {ann, func(n *client.EndpointSettings) { n.Headers = map[string]string{"webhook-id": "1"} }, []string{"/headers/webhook-id"}},
		"name of a header": {ann, func(n *client.EndpointSettings) { n.Headers = map[string]string{"a b": "1"} }, []string{"/headers/a b"}},
		"header of two lines": {
			ann, func(n *client.EndpointSettings) { n.Headers = map[string]string{"A": "1\r\nB: 2"} }, []string{"/headers/A"},
		},
		"long header": {ann, func(n *client.EndpointSettings) { n.Headers = map[string]string{"A": long} },
			[]string{"/headers/A"}},
	} {
		n := client.EndpointSettings{URL: "https://x.test/hook"}
		c.change(&n)
		require.ElementsMatch(t, c.want, pointers(t, check(&n, c.owner)), name)
	}
}

// TestTooManyEndpoints: a user has a bounded number of endpoints, which takes none from others.
func TestTooManyEndpoints(t *testing.T) {
	t.Parallel()
	var recorded []models.CommandKind
	room := func(context.Context, string) error { return nil }
	s := New(memory.Open(t), room, outbound.New(nil), nil).RecordedBy(func(_ context.Context, c *models.Command) {
		recorded = append(recorded, c.Kind)
	}).by("create")
	n, secrets := client.EndpointSettings{URL: "https://x.test/hook"}, map[string]bool{}
	for range maxEndpoints {
		v, err := s.Create(t.Context(), "ann", &n)
		require.NoError(t, err)
		require.Equal(t, client.EndpointStateActive, v.State)
		secrets[v.Secret] = true
	}
	require.Len(t, secrets, maxEndpoints, "each has a secret of its own")
	_, err := s.Create(t.Context(), "ann", &n)
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "too_many_endpoints", e.Code)
	_, err = s.Create(t.Context(), "bob", &n)
	require.NoError(t, err)
	require.Len(t, recorded, maxEndpoints+1)
}

// TestVerbs: the audit trail has each verb that changes an endpoint.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for _, o := range Operations(nil, nil) {
		if _, verb, ok := strings.Cut(o.Route, "POST /v1/endpoints/{id}/"); ok {
			require.NotEqual(t, verb == "test", models.CommandKind("endpoint."+verb).Known(), verb)
		}
	}
}

func TestFailureRate(t *testing.T) {
	t.Parallel()
	ok, failed := endpoint.Attempt{Status: 204}, endpoint.Attempt{Status: 500}
	require.Zero(t, failureRate(nil))
	require.InDelta(t, 0.75, failureRate([]endpoint.Attempt{failed, ok, failed, {}}), 0)
}
