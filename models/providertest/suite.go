// Package providertest is the conformance suite of models.Adapter. Every adapter runs
// all of it, against servers of the suite:
//
//	func TestContract(t *testing.T) { providertest.Run(t, suite) }
//
// The suite knows no kind of provider. The test of an adapter describes the differences
// in a Suite: how a call is read, how an acceptance looks, how a post is signed.
package providertest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A Suite describes an adapter and its kind of provider.
type Suite struct {
	Carries models.Capabilities // of the kind

	// New returns an adapter that calls baseURL and is configured for webhooks,
	// with an old key. Its time-out is at least 20 s. The suite closes it.
	New func(t testing.TB, baseURL string) models.Adapter

	// Read returns the mails that the provider would send for a request, with all
	// placeholders replaced. It fails if the provider would refuse the request.
	Read func(r *http.Request, body []byte) ([]Copy, error)

	// Accept answers a call as the provider does when it accepts its n mails. If its
	// answer has no body, the header must say everything. With PerMail it has a result for
	// each of several mails, so that a part of it proves nothing.
	Accept  func(w http.ResponseWriter, n int)
	PerMail bool
	// Recipients says that n is the number of recipients, also of one mail to several.
	Recipients bool

	// Unfit says that the provider takes no message with a content, so that the adapter refuses it; nil: it takes all.
	Unfit func(c *models.Content) bool

	// Takes reports whether the kind takes a call; nil: each. What it does not take is rejected here, without a request.
	Takes func(c *models.Call) bool

	// Untyped says that attachments have no types but those of their names.
	Untyped bool

	// Braces says that the provider reads braces in subjects and texts as code, so that the adapter refuses them.
	Braces bool

	// FilesSingly says that a call with attachments has one recipient.
	FilesSingly bool

	// ManyBytes is the size of a value that the provider takes of each recipient. The largest number of recipients with
	// such values and ManyContent bytes of HTML are more than it takes.
	ManyBytes, ManyContent int

	// Answers lists answers of the provider and their meaning.
	Answers []Answer

	// Sign signs a post at a time with the webhook key, SignOld with the old one, and Forge
	// with a wrong one. Shift changes a signed post so that the signed bytes stay the same
	// but their parts do not. With Secret, posts have a secret in their header in place of a signature,
	// which says nothing of their body and their time, and Shift is nil. With Timeless, signatures are of the body
	// alone, so that Shift is nil, too.
	Secret, Timeless     bool
	Sign, SignOld, Forge func(body []byte, at time.Time) (http.Header, []byte)
	Shift                func(h http.Header, body []byte) (http.Header, []byte)

	// Post returns the body of a post that says that the mail of a log was delivered.
	Post func(log models.ID, attempt int) []byte

	// Mixed is a post with good events among broken, foreign and unknown ones, if the
	// provider can send such a post. MixedGood is the number of good events.
	Mixed     []byte
	MixedGood int

	// Tagged returns the body of a post that says the same of the mail of a chunk to an address, and does not name its
	// log. It is nil if all posts do.
	Tagged func(chunk models.ID, attempt int, address string) []byte

	// Idempotency returns the idempotency key of a request; nil: that of the header Idempotency-Key.
	Idempotency func(body []byte) string

	// KeyHeader is the field that has the API key; default: Authorization. Removed returns the address that a request
	// removes from a list, or "" if it removes none; nil: the last part of the path of a DELETE.
	KeyHeader string
	Removed   func(r *http.Request, body []byte) string

	// Lists has a page of each of the provider's suppression lists, with one entry that cannot
	// be read. It is empty if the provider keeps none.
	Lists []List
}

// A Copy is a mail as it would arrive at one recipient.
type Copy struct {
	To                  string
	Name                string   // of the recipient, as the mail shows it
	Role                string   // to, cc or bcc, of one mail to several; else empty
	Visible             []string // other recipients that the mail shows
	Log, Attempt        string   // as they come back with its events
	From                string   // with its display name
	ReplyTo             string
	Subject, Text, HTML string
	Headers             map[string]string // its own, decoded
	Tags                []string
	Opens, Clicks       bool // what the provider tracks
	Files               []File
}

// A File is an attachment as it would arrive.
type File struct {
	Name, Type, ContentID string
	Data                  []byte
}

// An Answer is an answer of a provider and its meaning for a call with three recipients
// and for a call with one.
type Answer struct {
	Name       string
	Status     int
	Header     map[string]string
	Body       string
	Each       func(n int) string // the body of an answer to a call with n recipients; nil: Body
	Three, One models.Class       // Three: of the second recipient; see Others
	Others     models.Class       // of the first and the third, if it differs
	Reason     models.Reason      // of the second, if it matters
	RetryIn    time.Duration      // how long after the answer the provider wants to be called
	RetryAt    time.Time          // the same as a time, in whole seconds; neither is set: the part has no RetryAt
	Fewer      int                // how many recipients the call of three may have; 0: the number is not the reason
}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(*testing.T, Suite)
	}{
		{"Copies", testCopies},
		{"Thousand", testThousand},
		{"Parallel", testParallel},
		{"Placeholders", testPlaceholders},
		{"Options", testOptions},
		{"RecipientFields", testRecipientFields},
		{"Mails", testMails},
		{"Together", testTogether},
		{"HeaderInjection", testHeaderInjection},
		{"Refusals", testRefusals},
		{"ManyBytes", testManyBytes},
		{"Answers", testAnswers},
		{"GarbageAnswers", testGarbage},
		{"Redirect", testRedirect},
		{"Unavailable", testUnavailable},
		{"StartByPassed", testStartByPassed},
		{"Unknown", testUnknown},
		{"Truncated", testTruncated},
		{"NeverRepeats", testNeverRepeats},
		{"Keys", testKeys},
		{"Verify", testVerify},
		{"Parse", testParse},
		{"ParseTagged", testTagged},
		{"ParseMixed", testMixed},
		{"ParseGarbage", testParseGarbage},
		{"Lists", testLists},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

// batch is a fixed ID, so that failures can be compared.
var batch = SampleBatch()

// call returns a call for n recipients of chunk 0.
func call(n int) *models.Call {
	c := &models.Call{Batch: batch, Attempt: 3, Content: &models.Content{
		From:    models.Address{Email: "shop@sender.test", Name: "The Shop"},
		ReplyTo: []models.Address{{Email: "help@sender.test"}},
		Subject: "Order {{order}}",
		Text:    "Hello {{name}}, order {{order}}.",
		HTML:    "<p>Hello {{ name }}, order {{order}}.</p>",
	}}
	for i := 1; i <= n; i++ {
		c.Recipients = append(c.Recipients, models.CallRecipient{Log: batch.Log(i), Recipient: models.Recipient{
			Email: fmt.Sprintf("User.%d@rcpt%d.test", i, i%7), Name: fmt.Sprintf("Name %d", i),
			Vars: map[string]string{"order": fmt.Sprintf("A-%d", i)}}})
	}
	return c
}

// chunk returns call(n) for chunk number k.
func chunk(k, n int) *models.Call {
	c := call(n)
	for i := range c.Recipients {
		c.Recipients[i].Log = batch.Chunk(k).Log(i + 1)
		c.Recipients[i].Email = fmt.Sprintf("k%d-%s", k, c.Recipients[i].Email)
	}
	return c
}

// Check requires what is true of all results for c: each recipient is in one part.
func Check(t testing.TB, c *models.Call, parts []models.Part) {
	t.Helper()
	var seen models.Set
	for _, p := range parts {
		if !p.Class.Valid() {
			t.Errorf("class %q does not exist", p.Class)
		}
		if p.Recipients.Empty() {
			t.Errorf("a part of class %s has no recipients", p.Class)
		}
		if twice := seen.And(p.Recipients); !twice.Empty() {
			t.Errorf("recipients %s are in two parts", twice)
		}
		seen = seen.Or(p.Recipients)
		if len(p.Text) > models.MaxText {
			t.Errorf("a text has %d bytes, at most %d are allowed", len(p.Text), models.MaxText)
		}
		if strings.Contains(p.Text, "@") {
			t.Errorf("the text %q may hold an address", p.Text)
		}
		if p.Reason != "" && !p.Reason.Known() {
			t.Errorf("reason %q does not exist", p.Reason)
		}
		if !p.RetryAt.IsZero() && p.Class != models.Throttled && p.Class != models.Unavailable &&
			p.Class != models.AccountClass {
			t.Errorf("class %s has a RetryAt", p.Class)
		}
		if p.Fewer != 0 && (p.Class != models.RejectedHereClass || p.Fewer < 1 || p.Fewer >= len(c.Recipients)) {
			t.Errorf("class %s asks for %d recipients of %d", p.Class, p.Fewer, len(c.Recipients))
		}
	}
	if all := c.Numbers(); seen != all {
		t.Errorf("the parts name %s instead of %s", seen, all)
	}
}

// only checks parts and that they are one part of the wanted class. Mails that were accepted may each have a part.
func only(t testing.TB, c *models.Call, parts []models.Part, want ...models.Class) {
	t.Helper()
	Check(t, c, parts)
	other := func(p models.Part) bool { return p.Class != models.Accepted }
	if len(parts) == 0 || len(parts) > 1 && slices.ContainsFunc(parts, other) || !slices.Contains(want, parts[0].Class) {
		t.Fatalf("got %s, want one part of class %v", show(parts), want)
	}
}

// classOf returns the part of recipient n.
func classOf(parts []models.Part, n int) (models.Part, bool) {
	for _, p := range parts {
		if p.Recipients.Has(n) {
			return p, true
		}
	}
	return models.Part{}, false
}

func show(parts []models.Part) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "[%s %s status %d reason %q text %q]", p.Class, p.Recipients, p.Status, p.Reason, p.Text)
	}
	return b.String()
}
