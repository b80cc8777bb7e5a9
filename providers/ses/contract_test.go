package ses

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/mail"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

const (
	ownTopic   = "arn:aws:sns:eu-central-1:123456789012:mail"
	otherTopic = "arn:aws:sns:eu-central-1:123456789012:mail-2"
	certURL    = "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a1b.pem"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:    "ses",
		Kind:    "ses",
		BaseURL: base,
		Amazon: common.Amazon{
			Region:           "eu-central-1",
			AccessKeyID:      "AKIATEST",
			SecretAccessKey:  "test-secret",
			ConfigurationSet: "events",
			Topics:           []string{ownTopic, otherTopic},
		},
	}
}

// adapter returns an adapter that reads the certificate of Amazon SNS without a network.
func adapter(t testing.TB, base string) *Adapter {
	t.Helper()
	p, err := New(testSettings(base))
	if err != nil {
		t.Fatal(err)
	}
	p.posts.Client.Transport = amazon{}
	return p
}

// amazon is the transport to an Amazon SNS that has one certificate.
type amazon struct{}

func (amazon) RoundTrip(req *http.Request) (*http.Response, error) {
	_, cert := signer0()
	w := &http.Response{StatusCode: http.StatusNotFound, Request: req, Body: http.NoBody}
	if req.URL.String() == certURL {
		w.StatusCode, w.Body = http.StatusOK, io.NopCloser(bytes.NewReader(cert))
	}
	return w, nil
}

// signer0 returns the key of Amazon SNS and its certificate.
var signer0 = sync.OnceValues(func() (*rsa.PrivateKey, []byte) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	c := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(50, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
})

// sign signs a post that has come from a topic, with a key.
func sign(topic string, key *rsa.PrivateKey, body []byte, at time.Time) (http.Header, []byte) {
	var post map[string]string
	if err := json.Unmarshal(body, &post); err != nil {
		panic(err)
	}
	post["TopicArn"], post["Timestamp"] = topic, at.UTC().Format("2006-01-02T15:04:05.000Z")
	post["SignatureVersion"], post["SigningCertURL"] = "2", certURL
	text := ""
	for _, name := range []string{"Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token",
		"TopicArn", "Type"} {
		if value, ok := post[name]; ok {
			text += name + "\n" + value + "\n"
		}
	}
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
	if err != nil {
		panic(err)
	}
	post["Signature"] = base64.StdEncoding.EncodeToString(signature)
	signed, err := json.Marshal(post)
	if err != nil {
		panic(err)
	}
	h := http.Header{}
	h.Set("X-Amz-Sns-Message-Type", post["Type"])
	h.Set("X-Amz-Sns-Message-Id", post["MessageId"])
	h.Set("X-Amz-Sns-Topic-Arn", topic)
	h.Set("Content-Type", "text/plain; charset=UTF-8")
	return h, signed
}

// wrapped returns a post with an event.
func wrapped(event string) []byte {
	post, err := json.Marshal(
		map[string]string{"Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
			"TopicArn": ownTopic, "Message": event + "\n", "Timestamp": "2026-11-21T12:00:01.000Z"},
	)
	if err != nil {
		panic(err)
	}
	return post
}

func TestContract(t *testing.T) {
	own, _ := signer0()
	wrong, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	by := func(topic string, key *rsa.PrivateKey) func(body []byte, at time.Time) (http.Header, []byte) {
		return func(body []byte, at time.Time) (http.Header, []byte) { return sign(topic, key, body, at) }
	}
	providertest.Run(t, providertest.Suite{
		New:         func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries:     Spec.Carries,
		ManyBytes:   100_000,
		ManyContent: 20_000_000,
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true,
		Answers:     answers(),
		Sign:        by(ownTopic, own),
		SignOld:     by(otherTopic, own),
		Forge:       by(ownTopic, wrong),
		Shift: func(h http.Header, body []byte) (http.Header, []byte) { // the line with the type belongs to another value
			body = bytes.Replace(body, []byte(`"Type":"Notification"`), []byte(`"Type":""`), 1)
			return h, bytes.Replace(body, []byte(`:mail"`), []byte(`:mail\nType\nNotification"`), 1)
		},
		Post: func(log models.ID, attempt int) []byte {
			return wrapped(
				fmt.Sprintf(`{"eventType":"Delivery","mail":{"messageId":"m1","timestamp":"2026-11-21T12:00:00.000Z",`+
					`"destination":["a@b.test"],"tags":{"ses:configuration-set":["events"],"sd_log":["%s"],"sd_attempt":["%d"]}},`+
					`"delivery":{"timestamp":"2026-11-21T12:00:01.000Z","recipients":["a@b.test"],"smtpResponse":"250 ok"}}`,
					log, attempt),
			)
		},
		Mixed: wrapped(`{"eventType":"Bounce","mail":{"messageId":{},"destination":"a@b.test","timestamp":7,` +
			`"tags":{"sd_log":["01930000-0000-7000-8abc-def000000001"],"sd_attempt":[1],"x":7}},"bounce":{"bounceType":[],` +
			`"bouncedRecipients":[{"emailAddress":"a@b.test","diagnosticCode":"smtp; 550 5.1.1 a@b.test unknown"},7,null]}}`),
		MixedGood: 1,
		Lists:     listPages(),
	})
}

func listPages() (out []providertest.List) {
	for list, reason := range map[string]models.SuppressionReason{
		"BOUNCE": models.HardBounce, "COMPLAINT": models.Complaint,
	} {
		out = append(out, providertest.List{
			List: list,
			Body: `{"NextToken":null,"SuppressedDestinationSummaries":[{"EmailAddress":"ann@rcpt.test","Reason":"` + list +
				`","LastUpdateTime":1.7952624005E9},{"EmailAddress":"bob@rcpt.test","LastUpdateTime":{}}]}`,
			Want: []models.Listed{{Email: "ann@rcpt.test", Reason: reason, At: time.UnixMilli(1795262400500)}},
		})
	}
	return out
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	if n == 1 {
		return `{"MessageId":"m0"}`
	}
	return bulk(n, func(i int) string { return fmt.Sprintf(`{"Status":"SUCCESS","Error":null,"MessageId":"m%d"}`, i) })
}

func bulk(n int, result func(i int) string) string {
	var list []string
	for i := range n {
		list = append(list, result(i))
	}
	return `{"BulkEmailEntryResults":[` + strings.Join(list, ",") + `]}`
}

type pair struct{ Name, Value string }

type content struct{ Data, Charset string }

type destination struct{ ToAddresses, CcAddresses, BccAddresses []string }

type file struct {
	FileName, ContentType, ContentDisposition, ContentTransferEncoding, ContentID string
	RawContent                                                                    []byte
}

type mailText struct{ Subject, Text, HTML string }

// An input is the body of either call.
type input struct {
	FromEmailAddress, ConfigurationSetName string
	ReplyToAddresses                       []string

	Destination *destination
	EmailTags   []pair
	Content     *struct {
		Simple struct {
			Subject     content
			Body        struct{ Text, HTML content }
			Headers     []pair
			Attachments []file
		}
	}

	DefaultContent *struct {
		Template struct {
			TemplateContent mailText
			TemplateData    string
			Attachments     []file
		}
	}
	BulkEmailEntries []struct {
		Destination             destination
		ReplacementEmailContent struct {
			ReplacementTemplate struct{ ReplacementTemplateData string }
		}
		ReplacementHeaders []pair
		ReplacementTags    []pair
	}
}

// read checks a call as Amazon SES would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var in input
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	auth := regexp.MustCompile(
		`^AWS4-HMAC-SHA256 Credential=AKIATEST/\d{8}/eu-central-1/ses/aws4_request, ` +
			`SignedHeaders=[a-z0-9;-]+, Signature=[0-9a-f]{64}$`,
	)
	switch err := d.Decode(&in); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || !auth.MatchString(r.Header.Get("Authorization")) || r.Header.Get("X-Amz-Date") == "":
		return nil, fmt.Errorf("%s with header %v", r.Method, r.Header)
	case r.Header.Get("Content-Type") != "application/json" || in.ConfigurationSetName != "events":
		return nil, fmt.Errorf("%s, configuration set %q", r.Header.Get("Content-Type"), in.ConfigurationSetName)
	}
	base := providertest.Copy{ReplyTo: strings.Join(in.ReplyToAddresses, ", ")}
	if _, base.From, err = named(in.FromEmailAddress); err != nil {
		return nil, err
	}
	switch {
	case r.URL.Path == "/v2/email/outbound-emails" && in.Content != nil && in.DefaultContent == nil:
		m := in.Content.Simple
		base.Subject, base.Text, base.HTML = m.Subject.Data, m.Body.Text.Data, m.Body.HTML.Data
		return deliver(base, *in.Destination, in.EmailTags, m.Headers, m.Attachments)
	case r.URL.Path != "/v2/email/outbound-bulk-emails" || in.DefaultContent == nil || in.Content != nil:
		return nil, fmt.Errorf("path %s", r.URL.Path)
	case len(in.BulkEmailEntries) == 0 || len(in.BulkEmailEntries) > 50:
		return nil, fmt.Errorf("%d entries", len(in.BulkEmailEntries))
	}
	t := in.DefaultContent.Template
	for _, e := range in.BulkEmailEntries {
		values := map[string]string{}
		data := e.ReplacementEmailContent.ReplacementTemplate.ReplacementTemplateData
		if err := json.Unmarshal([]byte(data), &values); err != nil || len(data) > 262_144 {
			return nil, fmt.Errorf("data of %d bytes: %w", len(data), err)
		}
		copied := base
		for _, part := range []struct {
			to   *string
			text string
		}{{&copied.Subject, t.TemplateContent.Subject}, {&copied.Text, t.TemplateContent.Text},
			{&copied.HTML, t.TemplateContent.HTML}} {
			if *part.to, err = render(part.text, values); err != nil {
				return nil, err
			}
		}
		one, err := deliver(copied, e.Destination, e.ReplacementTags, e.ReplacementHeaders, t.Attachments)
		if err != nil || len(one) != 1 || len(e.Destination.ToAddresses) != 1 {
			return nil, fmt.Errorf("%d recipients of a mail: %w", len(one), err)
		}
		out = append(out, one...)
	}
	return out, nil
}

var tagText = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// deliver returns the copies of a mail.
func deliver(
	c providertest.Copy,
	to destination,
	tags, headers []pair,
	files []file,
) (out []providertest.Copy, err error) {
	if c.Subject == "" || c.Text == "" && c.HTML == "" || len(c.Text)+len(c.HTML) > 40<<20 {
		return nil, errors.New("no subject, no content, or too much of it")
	}
	for _, tag := range tags {
		if !tagText.MatchString(tag.Name) || !tagText.MatchString(tag.Value) {
			return nil, fmt.Errorf("tag %+v", tag)
		}
		*map[string]*string{kind.LogKey: &c.Log, kind.AttemptKey: &c.Attempt}[tag.Name] = tag.Value
	}
	for _, h := range headers {
		if c.Headers == nil {
			c.Headers = map[string]string{}
		}
		if _, twice := c.Headers[h.Name]; twice || len(h.Name) > 126 || len(h.Name+h.Value) > 996 {
			return nil, fmt.Errorf("header field %+v", h)
		}
		c.Headers[h.Name] = h.Value
	}
	for _, f := range files {
		if inline := f.ContentDisposition == "INLINE"; inline != (f.ContentID != "") ||
			f.ContentTransferEncoding != "BASE64" {
			return nil, fmt.Errorf("attachment %s", f.FileName)
		}
		c.Files = append(
			c.Files,
			providertest.File{Name: f.FileName, Type: f.ContentType, ContentID: f.ContentID, Data: f.RawContent},
		)
	}
	var lists [3][]providertest.Person
	for i, texts := range [3][]string{to.ToAddresses, to.CcAddresses, to.BccAddresses} {
		for _, text := range texts {
			name, _, err := named(text)
			if err != nil {
				return nil, err
			}
			parsed, _ := mail.ParseAddress(text)
			lists[i] = append(lists[i], providertest.Person{Email: parsed.Address, Name: name})
		}
	}
	return providertest.Shared(c, lists[0], lists[1], lists[2]), nil
}

// named reads an address, which must be ASCII: its name, and all of it.
func named(s string) (name, whole string, err error) {
	a, err := mail.ParseAddress(s)
	if err != nil || !models.ASCII(s) || strings.ContainsAny(s, "\r\n") {
		return "", "", fmt.Errorf("address %q: %w", s, err)
	}
	return a.Name, a.String(), nil
}

// render fills in a template as Handlebars does, for which a backslash or a third brace has a meaning of its own.
// Values are not read again.
func render(text string, values map[string]string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{{")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, _ := strings.Cut(rest, "}}")
		value, ok := values[name]
		if !ok || strings.HasSuffix(before, `\`) || strings.HasPrefix(after, "}") {
			return "", fmt.Errorf("tag {{%s}} after %q", name, before)
		}
		out.WriteString(value)
		text = after
	}
}

func refusal(code, message string) (map[string]string, string) {
	b, _ := json.Marshal(map[string]string{"message": message})
	return map[string]string{"X-Amzn-Errortype": code + ":http://internal.amazon.com/coral/"}, string(b)
}

// answers returns the documented answers of Amazon SES.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(
			list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason},
		)
		return &list[len(list)-1]
	}
	refuse := func(status int, code, message string, class models.Class, reason models.Reason) *providertest.Answer {
		a := add(fmt.Sprint(status, " ", code, " ", message), status, "", class, reason)
		a.Header, a.Body = refusal(code, message)
		return a
	}
	add("accepted", 200, "", models.Accepted, "").Each = acceptance
	add(
		"accepted fewer",
		200,
		bulk(2, func(int) string { return `{"Status":"SUCCESS","MessageId":"m"}` }),
		models.Unknown,
		"",
	)
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	for status, want := range map[string]struct {
		class  models.Class
		reason models.Reason
	}{
		"MESSAGE_REJECTED":                 {models.RejectedRequest, models.Virus},
		"MAIL_FROM_DOMAIN_NOT_VERIFIED":    {models.AccountClass, models.SenderNotVerified},
		"CONFIGURATION_SET_NOT_FOUND":      {models.AccountClass, ""},
		"CONFIGURATION_SET_DOES_NOT_EXIST": {models.AccountClass, ""},
		"TEMPLATE_NOT_FOUND":               {models.RejectedHereClass, ""},
		"TEMPLATE_DOES_NOT_EXIST":          {models.RejectedHereClass, ""},
		"ACCOUNT_SUSPENDED":                {models.AccountClass, ""},
		"ACCOUNT_THROTTLED":                {models.Throttled, ""},
		"ACCOUNT_DAILY_QUOTA_EXCEEDED":     {models.AccountClass, ""},
		"INVALID_SENDING_POOL_NAME":        {models.AccountClass, ""},
		"ACCOUNT_SENDING_PAUSED":           {models.AccountClass, ""},
		"CONFIGURATION_SET_SENDING_PAUSED": {models.AccountClass, ""},
		"INVALID_PARAMETER":                {models.RejectedRequest, models.InvalidRequest},
		"INVALID_PARAMETER_VALUE":          {models.RejectedRequest, models.InvalidRequest},
		"TRANSIENT_FAILURE":                {models.Unavailable, ""},
		"FAILED":                           {models.RejectedHereClass, ""},
		"SOMETHING_NEW":                    {models.Unknown, ""},
	} {
		a := add("status "+status, 200, "", want.class, want.reason)
		a.Others, a.One = models.Accepted, models.Accepted
		a.Each = func(n int) string {
			if n == 1 {
				return acceptance(1)
			}
			return bulk(n, func(i int) string {
				return [3]string{`{"Status":"SUCCESS","MessageId":"a"}`, `{"Status":"` + status + `","Error":"No."}`,
					`{"Status":"SUCCESS","MessageId":"c"}`}[i]
			})
		}
		a.Reason = "" // of one it is none
	}
	a := add("one address of several", 200, "", models.RejectedRecipient, models.MailboxInvalid)
	a.Others = models.Accepted
	a.Each = func(n int) string {
		return bulk(n, func(i int) string {
			return [3]string{`{"Status":"SUCCESS","MessageId":"a"}`,
				`{"Status":"INVALID_PARAMETER","Error":"Missing final '@domain'"}`,
				`{"Status":"SUCCESS","MessageId":"c"}`}[i]
		})
	}
	a.One, a.Reason = models.Unknown, ""
	a = add("a failure that has an id", 200, "", models.Unknown, "")
	a.Each = func(n int) string {
		return bulk(n, func(int) string { return `{"Status":"FAILED","MessageId":"m"}` })
	}
	refuse(400, "BadRequestException", "Missing final '@domain'", models.Split, "").One = models.RejectedRecipient
	a = refuse(400, "BadRequestException", "Domain contains illegal character", models.Split, "")
	a.One = models.RejectedRecipient
	refuse(
		400,
		"BadRequestException",
		"Invalid email address in FromEmailAddress",
		models.RejectedRequest,
		models.InvalidRequest,
	)
	a = refuse(400, "BadRequestException", "1 validation error detected", models.Split, "")
	a.One = models.RejectedRequest
	refuse(400, "BadRequestException", "Template contains unsupported operations.", models.RejectedHereClass, "")
	refuse(400, "BadRequestException", "Illegal attachment file extension", models.RejectedHereClass, "")
	refuse(
		400,
		"BadRequestException",
		"Email address is not verified. The following identities failed the check in region EU: a@b.test",
		models.AccountClass,
		models.SenderNotVerified,
	)
	refuse(400, "MessageRejected", "Email address is not verified.", models.AccountClass, models.SenderNotVerified)
	refuse(400, "MessageRejected", "Bad content: virus", models.RejectedRequest, models.Virus)
	refuse(400, "MessageRejected", "Transaction failed", models.RejectedRequest, models.InvalidRequest)
	refuse(400, "MailFromDomainNotVerifiedException", "No.", models.AccountClass, models.SenderNotVerified)
	refuse(400, "AccountSuspendedException", "No.", models.AccountClass, "")
	refuse(400, "SendingPausedException", "No.", models.AccountClass, "")
	refuse(400, "ThrottlingException", "Maximum sending rate exceeded.", models.Throttled, "")
	refuse(400, "ThrottlingException", "Daily message quota exceeded.", models.AccountClass, "")
	refuse(400, "LimitExceededException", "Too much.", models.Throttled, "")
	refuse(429, "TooManyRequestsException", "Too many requests.", models.Throttled, "")
	refuse(404, "NotFoundException", "Configuration set <events> does not exist.", models.AccountClass, "")
	for _, code := range []string{"AccessDeniedException", "ExpiredTokenException", "UnrecognizedClientException",
		"IncompleteSignature", "InvalidClientTokenId", "SignatureDoesNotMatch"} {
		refuse(403, code, "No.", models.AccountClass, "")
	}
	add(
		"code in the body",
		400,
		`{"__type":"com.amazonaws.sesv2#SendingPausedException","Message":"No."}`,
		models.AccountClass,
		"",
	)
	add("400 of a proxy", 400, "<html>", models.RejectedHereClass, "")
	add("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	refuse(500, "InternalFailure", "No.", models.Unknown, "")
	refuse(503, "ServiceUnavailable", "No.", models.Unavailable, "")
	return list
}
