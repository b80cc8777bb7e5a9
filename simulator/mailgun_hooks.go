package simulator

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
)

// mgHookTypes are the webhook types that can be subscribed to.
var mgHookTypes = []string{"accepted", "clicked", "complained", "delivered", "opened", "permanent_fail", "temporary_fail", "unsubscribed"}

const mgMaxHooks = 3 // URLs per type

// serveWebhooks answers /v3/domains/{domain}/webhooks[/{type}]: the URLs of each
// type of event. An account begins with its WebhookURL for all types.
func (g *mailgun) serveWebhooks(w http.ResponseWriter, r *http.Request, path []string) {
	var form url.Values
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		if err := r.ParseMultipartForm(1 << 20); err != nil && !errors.Is(err, http.ErrNotMultipart) {
			g.reply(w, mgMessage(400, "Malformed form data"))
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
		body := []byte(`{"webhooks":{`)
		for _, kind := range mgHookTypes {
			if urls := g.a.hookURLs(kind); len(urls) > 0 {
				if body[len(body)-1] != '{' {
					body = append(body, ',')
				}
				body = append(appendQuoted(body, kind), ':')
				body = appendURLs(body, urls)
			}
		}
		g.reply(w, answer{status: 200, kind: mgJSON, body: string(append(body, '}', '}'))})
	case !slices.Contains(mgHookTypes, kind):
		g.reply(w, mgMessage(404, "Webhook not found"))
	case r.Method == http.MethodGet:
		g.replyWebhook(w, "", kind)
	case r.Method == http.MethodPost && len(path) == 0, r.Method == http.MethodPut && len(path) == 1:
		urls := form["url"]
		for _, u := range urls {
			if u == "" || checkURL(u) != nil {
				urls = nil
			}
		}
		if len(urls) == 0 || len(urls) > mgMaxHooks {
			g.reply(w, mgMessage(400, "url parameter: want 1 to %d valid URLs", mgMaxHooks))
			return
		}
		g.a.setHooks(kind, urls)
		g.replyWebhook(w, "Webhook has been created", kind)
	case r.Method == http.MethodDelete && len(path) == 1:
		g.a.setHooks(kind, nil)
		g.reply(w, mgMessage(200, "Webhook has been deleted"))
	default:
		g.reply(w, mgNotFound)
	}
}

func (g *mailgun) replyWebhook(w http.ResponseWriter, message, kind string) {
	urls := g.a.hookURLs(kind)
	if len(urls) == 0 {
		g.reply(w, mgMessage(404, "Webhook not found"))
		return
	}
	body := []byte(`{`)
	if message != "" {
		body = append(appendQuoted(append(body, `"message":`...), message), ',')
	}
	body = appendURLs(append(body, `"webhook":`...), urls)
	g.reply(w, answer{status: 200, kind: mgJSON, body: string(append(body, '}'))})
}

func appendURLs(b []byte, urls []string) []byte {
	b = append(b, `{"urls":[`...)
	for i, u := range urls {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, u)
	}
	return append(b, ']', '}')
}

func (a *account) setHooks(kind string, urls []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hooks == nil {
		a.hooks = map[string][]string{}
	}
	a.hooks[kind] = urls
}
