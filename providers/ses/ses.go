// Package ses is the adapter for Amazon SES: its API of version 2 through Amazon's SDK, and events through Amazon SNS.
//
// A call to several is one request with a mail for each: SendBulkEmail, with a template that is part of it. A mail to
// one, or one mail to several with Cc and Bcc, is a SendEmail without a template, so that it may be larger. The SDK
// never retries. There are no idempotency keys and no log that can be searched: only events settle an unknown outcome.
package ses

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/sns"
)

// The sizes that Amazon SES takes ("Service quotas in Amazon SES"). Those of templates are documented for stored ones.
const (
	maxMail     = 40_000_000 // with attachments as base64
	maxTemplate = 500_000
	maxData     = 262_144 // values of a recipient, as JSON
	maxName     = 126     // of a header field
	maxField    = 996     // of a header field: name and value
)

// Spec describes Amazon SES. Tags have only letters, digits, '_' and '-', so that those of messages are left out.
// Whether opens and clicks are tracked is a setting of the configuration set.
var Spec = kind.Spec[string]{
	Name:       "ses",
	Short:      "ses",
	Title:      "Amazon SES",
	Recipients: 50,
	Webhook:    1 << 20, // a message of SNS has at most 256 kB
	Events:     events,
	Suppress:   lists,
	Region:     true,
	Key:        func(topic string) (string, error) { return topic, nil },
	Header:     sns.Header,
	Authorize:  func(http.Header, string) {}, // the signer does it
	Mistakes:   mistakes,
	Carries: models.Capabilities{
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        maxMail,
		Base64:      true,
		Copies:      true,
		OwnTracking: true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	},
}

// An Adapter is one provider of the kind Amazon SES: a region of an account.
type Adapter struct {
	kind.Base[string]
	region, set string
	api         *sesv2.Client
	access      atomic.Pointer[aws.Credentials]
	posts       *sns.Verifier
}

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[string, Adapter](&Spec)

var (
	regionName = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$`)
	topicName  = regexp.MustCompile(`^arn:aws(-[a-z]+)*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$`)
	setName    = regexp.MustCompile(`^[A-Za-z0-9_-]{0,64}$`)
)

// mistakes returns those in the settings that the kind has in place of an API key.
func mistakes(o settings.Settings) []error {
	errs := o.CheckVerifier("topics")
	wrong := func(is bool, setting, text string) {
		if is {
			errs = append(errs, settings.Mistake{Setting: setting, Text: text})
		}
	}
	badTopic := func(topic string) bool { return !topicName.MatchString(topic) }
	wrong(!regionName.MatchString(o.Region), "region", "required: a region like eu-central-1")
	wrong(o.AccessKeyID == "" || !settings.Visible(o.AccessKeyID), "access_key_id",
		"required: the ID of an access key of Amazon, without spaces")
	wrong(o.SecretAccessKey == "" || !settings.Visible(o.SecretAccessKey), "secret_access_key",
		"required: the secret of the access key, without spaces")
	wrong(!setName.MatchString(o.ConfigurationSet), "configuration_set",
		"has characters besides letters, digits, _ and -, or more than 64")
	wrong(slices.ContainsFunc(o.Topics, badTopic), "topics",
		"must be ARNs like arn:aws:sns:eu-central-1:123456789012:mail, separated by commas")
	return errs
}

// Open makes the adapter usable.
func (p *Adapter) Open(spec *kind.Spec[string], s settings.Settings) error {
	if err := p.Base.Open(spec, s); err != nil {
		return err
	}
	p.region, p.set = s.Region, s.ConfigurationSet
	if s.BaseURL == "" {
		p.Root = "https://email." + s.Region + ".amazonaws.com"
		if strings.HasPrefix(s.Region, "cn-") {
			p.Root += ".cn"
		}
	}
	p.api = sesv2.New(sesv2.Options{BaseEndpoint: &p.Root, Region: s.Region, Retryer: aws.NopRetryer{}})
	p.Client.HTTP.Transport = &signer{p, p.Client.HTTP.Transport}
	p.posts = sns.New(p.Root)
	p.SetKeys(s)
	return nil
}

// SetKeys replaces the access key and the topics by those of settings that Check has accepted. Calls in flight keep
// theirs.
func (p *Adapter) SetKeys(s settings.Settings) {
	p.access.Store(&aws.Credentials{AccessKeyID: s.AccessKeyID, SecretAccessKey: s.SecretAccessKey})
	p.Replace(s.Topics, s.SecretAccessKey)
}

// Verify implements models.Adapter.
func (p *Adapter) Verify(ctx context.Context, w *models.Webhook) (v models.Verified, err error) {
	if err := p.VerifyHeader(w); err != nil {
		return v, err
	}
	return p.posts.Verify(ctx, w)
}

// A signer signs the requests that the SDK does not make: queries, and changes of the suppression list.
type signer struct {
	*Adapter
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s *signer) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Authorization") != "" {
		return s.next.RoundTrip(req)
	}
	r := req.Clone(req.Context())
	sum := sha256.Sum256(nil) // they have no body
	hash, now := hex.EncodeToString(sum[:]), time.Now()
	err := v4.NewSigner().SignHTTP(r.Context(), *s.access.Load(), r, hash, "ses", s.region, now)
	if err != nil {
		return nil, err
	}
	return s.next.RoundTrip(r)
}
