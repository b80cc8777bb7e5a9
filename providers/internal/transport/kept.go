package transport

import (
	"errors"
	"io"
	"net/http"

	"github.com/safedelivr/safedelivr/models"
)

// Kept is a RoundTripper that keeps the request and sends nothing.
type Kept struct{ Request models.Request }

// RoundTrip implements http.RoundTripper. It always returns an error.
func (k *Kept) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	k.Request = models.Request{
		Method:      req.Method,
		URL:         req.URL.String(),
		ContentType: req.Header.Get("Content-Type"),
		Body:        body,
	}
	return nil, errors.Join(err, errors.New("transport: the request was kept and not sent"))
}
