package mailgun

import (
	"github.com/safedelivr/safedelivr/api/dialect"
)

// sendMIME is POST /v3/{domain}/messages.mime.
func sendMIME(r *dialect.Request) (dialect.Answer, error) { return dialect.Answer{}, malformed("not yet") }
