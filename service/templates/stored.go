package templates

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// stored returns the stored form of a version, and its digest.
func stored(s *client.TemplateSource) (digest string, raw []byte, err error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it would take six bytes for each <
	if err := e.Encode(s); err != nil {
		return "", nil, problem.New(problem.Internal, "internal", "The template cannot be stored.").Because(err)
	}
	if b.Len() > models.MaxDocument {
		var f problem.Form
		f.Wrong("", "too_long", "The template is too long to be stored.")
		return "", nil, f.Err()
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:16]), b.Bytes(), nil
}
