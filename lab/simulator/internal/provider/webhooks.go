package provider

import (
	"fmt"
	"net/url"
	"slices"
	"sync"
)

// Webhooks are the URLs to which an account's events are posted. An empty URL means
// nowhere. It is safe for concurrent use.
type Webhooks struct {
	mu     sync.Mutex
	url    string
	byType map[string][]string // where it differs from url
}

// URL returns where events go whose type has no URLs of its own.
func (h *Webhooks) URL() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.url
}

// URLs returns where events of the webhook type go.
func (h *Webhooks) URLs(kind string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if list, ok := h.byType[kind]; ok {
		return slices.Clone(list)
	}
	if h.url == "" {
		return nil
	}
	return []string{h.url}
}

// SetURL sends events of all types to url.
func (h *Webhooks) SetURL(url string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.url, h.byType = url, map[string][]string{}
}

// SetURLs sends events of the webhook type to the URLs.
func (h *Webhooks) SetURLs(kind string, urls []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byType[kind] = urls
}

// CheckURL returns an error if events cannot be posted to the URL. The empty URL
// is valid.
func CheckURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("webhook URL %q: want http or https with a host", text)
	}
	return nil
}
