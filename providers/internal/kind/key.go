package kind

import (
	"net/http"
	"strconv"

	"github.com/safedelivr/safedelivr/models"
)

// CallKey sets the idempotency key of a call. It is made from its chunk and its attempt, so that another process makes
// the same.
func CallKey(h http.Header, c *models.Call) http.Header {
	if len(c.Recipients) > 0 {
		h.Set("Idempotency-Key", "sd-"+c.Recipients[0].Log.ChunkID().String()+"-"+strconv.Itoa(c.Attempt))
	}
	return h
}
