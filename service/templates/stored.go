package templates

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// storedVersion is the stored form of a version. The HTML with its CSS in style attributes is
// kept, so that mail made from a version never changes.
type storedVersion struct {
	Source
	Inlined map[string]string `json:"inlined,omitempty"` // by language; "" is the default
}

// stored returns the digest of what a version was made from, and its stored form.
func (s *Source) stored() (digest string, raw []byte, err error) {
	v := storedVersion{Source: *s}
	if s.InlineCSS {
		v.Inlined = map[string]string{"": s.inlined}
		for name := range s.Languages {
			v.Inlined[name] = s.Languages[name].inlined
		}
	}
	for _, value := range []any{s, v} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // it would take six bytes for each <
		if err := e.Encode(value); err != nil {
			return "", nil, problem.New(problem.Internal, "internal", "The template cannot be stored.").Because(err)
		}
		if digest == "" {
			sum := sha256.Sum256(b.Bytes())
			digest = hex.EncodeToString(sum[:16])
		}
		raw = b.Bytes()
	}
	if len(raw) > models.MaxDocument {
		var f problem.Form
		f.Wrong("", "too_long", "The template is too long to be stored together with the HTML whose CSS is inlined.")
		return "", nil, f.Err()
	}
	return digest, raw, nil
}

// source returns what the version was made from, with the inlined HTML.
func (v *storedVersion) source() Source {
	s := v.Source
	s.inlined = v.Inlined[""]
	for name, c := range s.Languages {
		c.inlined = v.Inlined[name]
		s.Languages[name] = c
	}
	return s
}
