package dialect

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Accept stores the mail that read reads from a request. Without a repeat it only checks that it could be stored, after
// those that it has checked before.
func (r *Request) Accept(repeat *service.Repeat, read func(*intake.Intake) error) (a service.Accepted, err error) {
	in := r.intake()
	defer in.Close()
	in.Kept = r.large
	switch err = read(in); {
	case err != nil:
	case repeat == nil:
		err = r.checks().Check(r.Context(), in)
	default:
		a, _, err = r.Service.Accept(r.Context(), r.Who, in, *repeat)
	}
	return a, err
}

// checks returns what checks the mails of the request.
func (r *Request) checks() *service.Trial {
	if r.trial == nil {
		r.trial = r.Service.NewTrial(r.Who)
	}
	return r.trial
}

// Written returns an address as it is written in a mail.
func Written(a models.Address) string {
	if a.Name == "" {
		return a.Email
	}
	return a.Name + " <" + a.Email + ">"
}

// Digest returns a hash that is the same for equal JSON.
func Digest(v any) string {
	sum := sha256.Sum256(canonical(v))
	return hex.EncodeToString(sum[:])
}

// Invalid returns the error of a field, whose name may have several parts: to.0.email.
func Invalid(field, code, format string, args ...any) error {
	e := problem.New(problem.Invalid, code, format, args...)
	pointer := "/" + strings.ReplaceAll(field, ".", "/")
	e.Fields = []problem.FieldError{{Pointer: pointer, Code: code, Detail: e.Detail}}
	return e
}

// Refused reports whether the request was refused for what it says, so that a repeat is refused, too.
func Refused(e *problem.Error) bool { return e.Kind.Status() < 500 && e.RetryAfter == 0 }

// AddHeader adds a header field to a batch, whose value write writes. It leaves out fields that belong to the gateway,
// empty ones, and those that are there.
func AddHeader(b *intake.Batch, name, value string, write func(string) string) {
	value = strings.TrimSpace(models.OneLine(value))
	if value != "" && !intake.IsReserved(name) && models.FindHeader(b.Headers, name) < 0 {
		b.Headers = append(b.Headers, models.Header{Name: name, Value: write(value)})
	}
}

// AddTag adds a tag to a batch. It leaves out empty ones and those that are there.
func AddTag(b *intake.Batch, tag string) {
	if tag != "" && !slices.Contains(b.Tags, tag) {
		b.Tags = append(b.Tags, tag)
	}
}
