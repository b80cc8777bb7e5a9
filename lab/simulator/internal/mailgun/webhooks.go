package mailgun

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// webhookTypes are the webhook types that can be subscribed to.
var webhookTypes = []string{
	"accepted", "clicked", "complained", "delivered", "opened", "permanent_fail", "temporary_fail", "unsubscribed",
}

const (
	maxURLs = 3       // per type
	maxForm = 1 << 20 // bytes
)

// A subscription holds the URLs of a webhook type.
type subscription struct {
	URLs []string `json:"urls"`
}

// serveWebhooks answers /v3/domains/{domain}/webhooks[/{type}]. A new account has
// its webhook URL for all types.
func (g *Mailgun) serveWebhooks(w http.ResponseWriter, r *http.Request, path []string) {
	var form url.Values
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseMultipartForm(maxForm); err != nil && !errors.Is(err, http.ErrNotMultipart) {
			g.reply(w, malformed)
			return
		}
		form = r.PostForm
	}
	kind := form.Get("id")
	if len(path) == 1 {
		kind = path[0]
	}
	switch {
	case r.Method == http.MethodGet && len(path) == 0:
		list := map[string]subscription{}
		for _, kind := range webhookTypes {
			if urls := g.account.Webhooks.URLs(kind); len(urls) > 0 {
				list[kind] = subscription{urls}
			}
		}
		g.reply(w, jsonAnswer(map[string]any{"webhooks": list}))
	case !slices.Contains(webhookTypes, kind):
		g.reply(w, webhookNotFound)
	case r.Method == http.MethodGet:
		g.replyWebhook(w, "", kind)
	case r.Method == http.MethodPost && len(path) == 0, r.Method == http.MethodPut && len(path) == 1:
		g.subscribe(w, kind, form["url"])
	case r.Method == http.MethodDelete && len(path) == 1:
		g.account.Webhooks.SetURLs(kind, nil)
		g.reply(w, say(200, "Webhook has been deleted"))
	default:
		g.reply(w, notFound)
	}
}

var webhookNotFound = say(404, "Webhook not found")

func (g *Mailgun) subscribe(w http.ResponseWriter, kind string, urls []string) {
	invalid := func(u string) bool { return u == "" || provider.CheckURL(u) != nil }
	if len(urls) == 0 || len(urls) > maxURLs || slices.ContainsFunc(urls, invalid) {
		g.reply(w, say(400, "url parameter: want 1 to %d valid URLs", maxURLs))
		return
	}
	g.account.Webhooks.SetURLs(kind, urls)
	g.replyWebhook(w, "Webhook has been created", kind)
}

func (g *Mailgun) replyWebhook(w http.ResponseWriter, message, kind string) {
	urls := g.account.Webhooks.URLs(kind)
	if len(urls) == 0 {
		g.reply(w, webhookNotFound)
		return
	}
	g.reply(w, jsonAnswer(struct {
		Message string       `json:"message,omitempty"`
		Webhook subscription `json:"webhook"`
	}{message, subscription{urls}}))
}

func jsonAnswer(v any) provider.Answer {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // v holds strings only
	}
	return provider.Answer{Status: http.StatusOK, Type: typeJSON, Body: string(body)}
}
