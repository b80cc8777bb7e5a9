package ses_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/aws-sdk-go-v2/service/sesv2/types"
	"github.com/aws/smithy-go"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// A client calls the account ses through Amazon's SDK.
type client struct {
	*simtest.Rig
	*sesv2.Client
	t *testing.T
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent = true
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	err := r.AddAccount(simulator.Account{Name: "ses", Kind: simulator.SES, Key: "AKIA:secret", WebhookURL: hooks + "ses"})
	if err != nil {
		t.Fatal(err)
	}
	return &client{r, sdk(r, "AKIA", "secret"), t}
}

func sdk(r *simtest.Rig, id, secret string) *sesv2.Client {
	key := func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, nil
	}
	return sesv2.New(sesv2.Options{BaseEndpoint: aws.String(r.URL + "/ses"), Region: "us-east-1",
		Retryer: aws.NopRetryer{}, HTTPClient: r.HTTP, Credentials: aws.CredentialsProviderFunc(key)})
}

// code returns the code of an error, or its text.
func code(err error) string {
	var api smithy.APIError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &api):
		return api.ErrorCode()
	}
	return "no answer"
}

func text(s string) *types.Content { return &types.Content{Data: &s} }

func mail(to string) *sesv2.SendEmailInput {
	return &sesv2.SendEmailInput{
		FromEmailAddress: aws.String("Shop <shop@example.com>"),
		Destination:      &types.Destination{ToAddresses: []string{to}},
		EmailTags:        tags(to),
		Content:          &types.EmailContent{Simple: &types.Message{Subject: text("S"), Body: &types.Body{Text: text("T")}}},
	}
}

func tags(to string) []types.MessageTag {
	name, _, _ := strings.Cut(to, "@")
	return []types.MessageTag{
		{Name: aws.String(simtest.RecipientKey), Value: aws.String(strings.NewReplacer("+", "-", ".", "-").Replace(name))},
	}
}

func bulk(to ...string) *sesv2.SendBulkEmailInput {
	in := &sesv2.SendBulkEmailInput{
		FromEmailAddress: aws.String("shop@example.com"),
		DefaultContent: &types.BulkEmailContent{Template: &types.Template{TemplateData: aws.String(`{"b":"&"}`),
			TemplateContent: &types.EmailTemplateContent{
				Subject: aws.String("S {{a}}"),
				Html:    aws.String("<p>{{ a }}{{b}}</p>"),
			}}},
	}
	for _, address := range to {
		in.BulkEmailEntries = append(in.BulkEmailEntries, types.BulkEmailEntry{
			Destination:     &types.Destination{ToAddresses: []string{address}},
			ReplacementTags: tags(address),
			ReplacementEmailContent: &types.ReplacementEmailContent{ReplacementTemplate: &types.ReplacementTemplate{
				ReplacementTemplateData: aws.String(`{"a":"<` + address + `>"}`)}},
		})
	}
	return in
}

// events returns "recipient type" of each webhook, and checks its signature with the certificate that it names.
func (c *client) events() (list []string) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "ses" {
			continue
		}
		var post map[string]string
		if err := json.Unmarshal(r.Body, &post); err != nil || post["SignatureVersion"] != "1" {
			c.t.Fatalf("%v %s", err, r.Body)
		}
		signed := ""
		for _, name := range []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"} {
			signed += name + "\n" + post[name] + "\n"
		}
		signature, _ := base64.StdEncoding.DecodeString(post["Signature"])
		if c.certificate(post["SigningCertURL"]).CheckSignature(x509.SHA1WithRSA, []byte(signed), signature) != nil {
			list = append(list, "forged")
			continue
		}
		var e struct {
			EventType string
			Mail      struct {
				MessageID   string `json:"messageId"`
				Destination []string
				Tags        map[string][]string
			}
		}
		err := json.Unmarshal([]byte(post["Message"]), &e)
		if err != nil || len(e.Mail.MessageID) != 36 || len(e.Mail.Tags[simtest.RecipientKey]) != 1 ||
			post["TopicArn"] != simulator.SESTopic+"ses" || r.Header.Get("X-Amz-Sns-Topic-Arn") != post["TopicArn"] ||
			r.Header.Get("X-Amz-Sns-Message-Id") != post["MessageId"] {
			c.t.Errorf("%v %s", err, r.Body)
		}
		list = append(list, strings.Join(e.Mail.Destination, ",")+" "+e.EventType)
	}
	slices.Sort(list)
	return list
}

// certificate reads a certificate of Amazon SNS from the simulator.
func (c *client) certificate(url string) *x509.Certificate {
	c.t.Helper()
	resp, err := c.HTTP.Get(strings.Replace(url, "https://sns.us-east-1.amazonaws.com", c.URL+"/ses", 1))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	block, _ := pem.Decode(raw)
	if block == nil {
		c.t.Fatalf("%d %s", resp.StatusCode, raw)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert
}

func TestBulkAndItsEvents(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	out, err := c.SendBulkEmail(t.Context(), bulk(simtest.Addresses(50)...))
	if err != nil || len(out.BulkEmailEntryResults) != 50 {
		t.Fatal(err)
	}
	for i, address := range simtest.Addresses(50) {
		name := *tags(address)[0].Value
		copies := c.Copies(name)
		if len(copies) != 1 || copies[0].ProviderID != *out.BulkEmailEntryResults[i].MessageId || copies[0].Visible != nil ||
			copies[0].Subject != "S <"+address+">" || copies[0].HTML != "<p><"+address+">&</p>" {
			t.Fatalf("%s: %+v", name, copies)
		}
	}
	if list := c.events(); len(list) != 100 || !strings.HasSuffix(list[0], " Delivery") ||
		!strings.HasSuffix(list[1], " Send") {
		t.Errorf("%d events %v", len(list), list[:2])
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	for name, want := range map[string]string{
		"deliver": "Delivery Send", "hardbounce": "Bounce Send", "blocked": "Bounce Send", "mailboxfull": "Bounce Send",
		"softbounce": "Delivery DeliveryDelay Send", "expire": "Bounce DeliveryDelay DeliveryDelay Send",
		"suppressed-bounce": "Bounce Send", "suppressed-spam": "Complaint Send", "suppressed-unsub": "Bounce Send",
		"invalid": "Bounce Send", "rejected": "Reject Send", "overquota": "Delivery Send",
		"complain": "Complaint Delivery Send",
		"open":     "Delivery Open Send", "click": "Click Delivery Open Send", "async": "Bounce Delivery Send",
		"unsubscribe": "Delivery Send Subscription", "lostevent": "Send", "silent": "",
	} {
		to := name + "@sim.test"
		if _, err := c.SendEmail(t.Context(), mail(to)); err != nil {
			t.Fatal(name, err)
		}
		var got []string
		for _, e := range c.events() {
			if rest, ok := strings.CutPrefix(e, to+" "); ok {
				got = append(got, rest)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestInvalidCallsAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	header := func(name, value string) []types.MessageHeader {
		return []types.MessageHeader{{Name: &name, Value: &value}}
	}
	for name, test := range map[string]struct {
		change func(in *sesv2.SendEmailInput)
		want   string
	}{
		"valid":       {func(*sesv2.SendEmailInput) {}, ""},
		"bad address": {func(in *sesv2.SendEmailInput) { in.Destination.ToAddresses[0] = "no-address" }, "BadRequestException"},
		"refused": {func(in *sesv2.SendEmailInput) { in.Destination.ToAddresses[0] = "refused@sim.test" },
			"BadRequestException"},
		"no to": {func(in *sesv2.SendEmailInput) { in.Destination = &types.Destination{} }, "BadRequestException"},
		"51 recipients": {func(in *sesv2.SendEmailInput) { in.Destination.BccAddresses = simtest.Addresses(50) },
			"BadRequestException"},
		"no sender": {func(in *sesv2.SendEmailInput) { in.FromEmailAddress = nil }, "BadRequestException"},
		"no body":   {func(in *sesv2.SendEmailInput) { in.Content.Simple.Body = &types.Body{} }, "BadRequestException"},
		"tag":       {func(in *sesv2.SendEmailInput) { in.EmailTags[0].Value = aws.String("a b") }, "BadRequestException"},
		"long header": {func(in *sesv2.SendEmailInput) { in.Content.Simple.Headers = header("X", strings.Repeat("x", 996)) },
			"BadRequestException"},
		"header beyond ASCII": {func(in *sesv2.SendEmailInput) { in.Content.Simple.Headers = header("X", "ü") },
			"BadRequestException"},
		"program": {func(in *sesv2.SendEmailInput) {
			in.Content.Simple.Attachments = []types.Attachment{{FileName: aws.String("a.EXE"), RawContent: []byte("x")}}
		}, "BadRequestException"},
		"template": {func(in *sesv2.SendEmailInput) { in.Content = &types.EmailContent{Template: &types.Template{}} },
			"BadRequestException"},
	} {
		before := c.Stats("ses").Copies
		in := mail("a@example.com")
		test.change(in)
		_, err := c.SendEmail(t.Context(), in)
		if stored := c.Stats("ses").Copies > before; code(err) != test.want || stored != (test.want == "") {
			t.Errorf("%s: %v, stored %v", name, err, stored)
		}
	}
	for name, change := range map[string]func(in *sesv2.SendBulkEmailInput){
		"51 entries":  func(in *sesv2.SendBulkEmailInput) { *in = *bulk(simtest.Addresses(51)...) },
		"no entries":  func(in *sesv2.SendBulkEmailInput) { in.BulkEmailEntries = []types.BulkEmailEntry{} },
		"helper":      func(in *sesv2.SendBulkEmailInput) { set(in, "{{#if a}}x{{/if}}") },
		"three":       func(in *sesv2.SendBulkEmailInput) { set(in, "{{{a}}}") },
		"not closed":  func(in *sesv2.SendBulkEmailInput) { set(in, "x {{ y") },
		"large":       func(in *sesv2.SendBulkEmailInput) { set(in, strings.Repeat("x", 600_000)) },
		"no template": func(in *sesv2.SendBulkEmailInput) { in.DefaultContent = &types.BulkEmailContent{} },
	} {
		in := bulk("a@example.com", "b@example.com")
		change(in)
		if _, err := c.SendBulkEmail(t.Context(), in); code(err) != "BadRequestException" {
			t.Errorf("%s: %v", name, err)
		}
	}
	in := bulk("a@example.com", "no-address", "refused@sim.test", "d@example.com")
	in.BulkEmailEntries[3].ReplacementEmailContent.ReplacementTemplate.ReplacementTemplateData = aws.String(`{"a":`)
	out, err := c.SendBulkEmail(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	const bad = types.BulkEmailStatusInvalidParameter
	for i, want := range []types.BulkEmailStatus{"SUCCESS", bad, bad, bad} {
		if got := out.BulkEmailEntryResults[i]; got.Status != want || (got.MessageId != nil) != (want == "SUCCESS") {
			t.Errorf("%d: %+v", i, got)
		}
	}
}

func set(in *sesv2.SendBulkEmailInput, html string) {
	in.DefaultContent.Template.TemplateContent.Html = &html
}

// TestSignedRequests: a request has a signature by the key of the account, over all of it.
func TestSignedRequests(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for key, want := range map[[2]string]string{{"AKIA", "secret"}: "", {"AKIB", "secret"}: "UnrecognizedClientException",
		{"AKIA", "other"}: "SignatureDoesNotMatch"} {
		if _, err := sdk(c.Rig, key[0], key[1]).SendEmail(t.Context(), mail("a@example.com")); code(err) != want {
			t.Errorf("%v: %v", key, err)
		}
		_, err := sdk(c.Rig, key[0], key[1]).GetAccount(t.Context(), &sesv2.GetAccountInput{})
		if (err == nil) != (want == "") {
			t.Errorf("%v: %v", key, err)
		}
	}
	resp, err := c.HTTP.Post(c.URL+"/ses/v2/email/outbound-emails", "application/json", bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 403 || c.Stats("ses").Copies != 1 {
		t.Error(resp.StatusCode)
	}
}

func TestMailToSeveral(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	in := mail("a@example.com")
	in.Destination.CcAddresses, in.Destination.BccAddresses = []string{"Bob <b@example.com>"}, []string{"c@example.com"}
	in.ReplyToAddresses = []string{"r@example.com"}
	in.Content.Simple.Headers = []types.MessageHeader{{Name: aws.String("X-A"), Value: aws.String("1")}}
	in.Content.Simple.Attachments = []types.Attachment{
		{FileName: aws.String("f.txt"), RawContent: []byte("hi"), ContentType: aws.String("text/plain")},
	}
	if _, err := c.SendEmail(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	a, b, hidden := c.Copies("a"), c.Copies("a/b@example.com"), c.Copies("a/c@example.com")
	if len(a) != 1 || len(b) != 1 || len(hidden) != 1 || b[0].Role != "cc" || hidden[0].Role != "bcc" ||
		len(a[0].Attachments) != 1 ||
		a[0].Attachments[0].Size != 2 ||
		a[0].Headers["X-A"] != "1" ||
		a[0].Headers["Reply-To"] != "r@example.com" {
		t.Errorf("%+v %+v %+v", a, b, hidden)
	}
	if list := c.events(); len(list) != 6 || list[0] != "a@example.com,b@example.com,c@example.com Delivery" {
		t.Error(list)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for mode, want := range map[string]string{
		"status:403": "UnrecognizedClientException", "status:500": "InternalFailure", "status:503": "ServiceUnavailable",
		simulator.ModeCredits: "ThrottlingException", simulator.ModeFull: "ThrottlingException",
		simulator.ModeRate: "TooManyRequestsException", simulator.ModeUnverified: "MessageRejected",
		simulator.ModeNotAllowed: "AccountSuspendedException", simulator.ModeBlocked: "AccessDeniedException",
		simulator.ModeTooLarge: "RequestEntityTooLarge", simulator.ModeRefuse: "BadRequestException",
		simulator.ModeCloseUnread: "no answer", simulator.ModeLargeBatch: "BadRequestException",
	} {
		id := c.Inject(simulator.Fault{Account: "ses", Mode: mode})
		if _, err := c.SendEmail(t.Context(), mail("a@example.com")); code(err) != want {
			t.Errorf("%s: %v", mode, err)
		}
		c.Clear(id)
	}
	if n := c.Stats("ses").Copies; n != 0 {
		t.Errorf("%d copies", n)
	}
}

// TestPostsAreRepeated: a post is repeated three times, with the same id, and not after 4xx.
func TestPostsAreRepeated(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	status := http.StatusServiceUnavailable
	c.Hooks.Status = func(*http.Request, []byte) int { return status }
	send := func(to string) int {
		before := len(c.events())
		if _, err := c.SendEmail(t.Context(), mail(to)); err != nil {
			t.Fatal(err)
		}
		return len(c.events()) - before
	}
	if n := send("a@example.com"); n != 8 {
		t.Errorf("%d posts of 2 events", n)
	}
	ids := map[string]int{}
	for _, r := range c.Hooks.Requests() {
		ids[r.Header.Get("X-Amz-Sns-Message-Id")+string(r.Body)]++
	}
	if len(ids) != 2 {
		t.Errorf("%d ids", len(ids))
	}
	status = http.StatusForbidden
	if n := send("b@example.com"); n != 2 {
		t.Errorf("%d posts of 2 events after 403", n)
	}
	status = http.StatusOK
	c.Inject(simulator.Fault{Account: "ses", Mode: simulator.ModeBadSignature})
	send("d@example.com")
	if list := c.events(); !slices.Contains(list, "forged") {
		t.Errorf("%v", list)
	}
	if list := c.Copies("d"); len(list) != 1 || list[0].Muted {
		t.Errorf("the receiver took the events: %+v", list)
	}
	status = http.StatusForbidden
	send("e@example.com")
	if list := c.Copies("e"); len(list) != 1 || !list[0].Muted {
		t.Errorf("no post is repeated: %+v", list)
	}
}

func TestSuppressionList(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	for _, to := range []string{"hardbounce@sim.test", "complain@sim.test", "a@sim.test"} {
		if _, err := c.SendEmail(t.Context(), mail(to)); err != nil {
			t.Fatal(err)
		}
	}
	c.events()
	all, err := c.ListSuppressedDestinations(t.Context(), &sesv2.ListSuppressedDestinationsInput{PageSize: aws.Int32(1)})
	if err != nil || len(all.SuppressedDestinationSummaries) != 1 || all.NextToken == nil {
		t.Fatal(all, err)
	}
	some, err := c.ListSuppressedDestinations(t.Context(), &sesv2.ListSuppressedDestinationsInput{
		Reasons: []types.SuppressionListReason{
			"COMPLAINT",
		}, StartDate: aws.Time(time.Now().Add(-time.Hour)), EndDate: aws.Time(time.Now().Add(time.Hour))})
	if err != nil || len(some.SuppressedDestinationSummaries) != 1 ||
		*some.SuppressedDestinationSummaries[0].EmailAddress != "complain@sim.test" {
		t.Fatal(some, err)
	}
	bad := &sesv2.ListSuppressedDestinationsInput{NextToken: aws.String("x")}
	if _, err := c.ListSuppressedDestinations(t.Context(), bad); code(err) != "InvalidNextTokenException" {
		t.Error(err)
	}
	get := &sesv2.GetSuppressedDestinationInput{EmailAddress: aws.String("hardbounce@sim.test")}
	if one, err := c.GetSuppressedDestination(t.Context(), get); err != nil ||
		one.SuppressedDestination.Reason != "BOUNCE" {
		t.Error(one, err)
	}
	for _, want := range []string{"", "NotFoundException"} {
		_, err := c.DeleteSuppressedDestination(
			t.Context(),
			&sesv2.DeleteSuppressedDestinationInput{EmailAddress: get.EmailAddress},
		)
		if code(err) != want {
			t.Error(err)
		}
	}
	if _, err := c.GetSuppressedDestination(t.Context(), get); code(err) != "NotFoundException" {
		t.Error(err)
	}
	out, err := c.GetAccount(t.Context(), &sesv2.GetAccountInput{})
	if err != nil || !out.SendingEnabled || out.SendQuota.MaxSendRate != 100 {
		t.Error(fmt.Sprint(out), err)
	}
}
