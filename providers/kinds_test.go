package providers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

func publicKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(der)
}

// apis returns the kinds that have an HTTP API, which the simulator imitates.
func apis() []providers.Kind {
	return slices.DeleteFunc(providers.Kinds(), func(k providers.Kind) bool { return k.Server })
}

func TestKinds(t *testing.T) {
	var names []string
	for _, k := range providers.Kinds() {
		names = append(names, k.Name)
		if k.Title == "" {
			t.Errorf("kind %+v has no title", k)
		}
		p, err := k.New(providers.Settings{})
		if err == nil || p != nil {
			t.Errorf("%s: New without settings gave %v, %v", k.Name, p, err)
		}
		p, err = providers.New(providers.Settings{
			Name:       "acc",
			Kind:       k.Name,
			APIKey:     "k",
			Pair:       settings.Pair{SecretKey: "s"},
			Domain:     "mg.example.com",
			WebhookKey: publicKey(t),
			Server:     settings.Server{Host: "127.0.0.1", Port: 25},
			Amazon:     amazon("k"),
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := p.MaxRecipients(); n < 1 || n > models.MaxChunkRecipients {
			t.Errorf("%s: %d recipients for one call", k.Name, n)
		}
		p.Close()
	}
	if slices.Sort(names); len(slices.Compact(names)) != len(providers.Kinds()) {
		t.Errorf("names %v", names)
	}
}

func TestCheckReportsEveryMistakeAndNoSecret(t *testing.T) {
	for _, k := range apis() {
		errs := providers.Check(providers.Settings{
			Name:       "No Name",
			Kind:       k.Name,
			APIKey:     "hid den",
			Domain:     "x",
			BaseURL:    "https://u:hidden@h",
			WebhookKey: " hidden ",
			Pair:       settings.Pair{SecretKey: "hid den"},
			Timeout:    -1,
			Amazon:     amazon("hid den"),
		})
		if len(errs) < 4 || strings.Contains(errors.Join(errs...).Error(), "den") {
			t.Errorf("%s: %v", k.Name, errs)
		}
	}
	if errs := providers.Check(providers.Settings{Name: "x", Kind: "pigeon"}); len(errs) != 1 ||
		!strings.Contains(errs[0].Error(), "sendgrid") {
		t.Error(errs)
	}
}

// TestBoxes: each kind of event that Safedelivr uses needs a box at each provider, and
// docs/webhooks.md names the boxes. README.md names those of engagement.
func TestBoxes(t *testing.T) {
	page, err := os.ReadFile("../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	unreported := map[string]models.EventKind{"postmark": models.Processed, "resend": models.Unsubscribed,
		"mailjet": models.Processed, "mailtrap": models.Processed}
	engagement := []models.EventKind{models.Opened, models.Clicked, models.Complained, models.Unsubscribed}
	for _, k := range apis() {
		row := regexp.MustCompile(`(?m)^\| ` + k.Title + ` \| [^|]* \| [^|]*/webhooks/.*$`).FindString(string(page))
		have := map[models.EventKind]bool{}
		for _, b := range k.Boxes {
			for _, kind := range b.Kinds {
				have[kind] = true
			}
			for label := range strings.SplitSeq(b.Label, " and ") {
				if !strings.Contains(row, label) {
					t.Errorf("docs/webhooks.md names no box %q of %s", label, k.Title)
				}
				engages := slices.ContainsFunc(b.Kinds, func(e models.EventKind) bool { return slices.Contains(engagement, e) })
				if engages && !strings.Contains(string(readme), label) {
					t.Errorf("README.md names no box %q of %s", label, k.Title)
				}
			}
		}
		for _, kind := range models.EventKinds {
			if kind != models.Rejected && (!have[kind]) != (unreported[k.Name] == kind) {
				t.Errorf("%s: no box for %s", k.Name, kind)
			}
		}
	}
}

// TestSetKeys: the keys of every kind can be replaced. The next call and the next post use the new ones, and the old
// API key, which the provider may repeat, appears in no text.
func TestSetKeys(t *testing.T) {
	for _, k := range apis() {
		got := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got <- r.Header.Get("Authorization") + r.Header.Get("X-Postmark-Server-Token") + r.Header.Get("Api-Key")
			w.WriteHeader(http.StatusUnauthorized)
			text := "not first-key, not second-key"
			if k.Pair {
				text += ", not other-key"
			}
			_, _ = io.WriteString(w, `{"message": "`+text+`"}`)
		}))
		s := providers.Settings{
			Name:    "acc",
			Kind:    k.Name,
			APIKey:  "first-key",
			Pair:    settings.Pair{SecretKey: "other-key"},
			Domain:  "mg.example.com",
			BaseURL: server.URL,
			Events:  models.EventsNone,
			Amazon:  amazon("first-key"),
		}
		s.Topics = nil
		a, err := providers.New(s)
		if err != nil {
			t.Fatal(err)
		}
		a.Send(t.Context(), providertest.SampleCall(1))
		first := <-got
		if err := a.VerifyHeader(&models.Webhook{At: time.Now()}); err == nil {
			t.Errorf("%s: posts are verified without a key", k.Name)
		}
		s.APIKey, s.WebhookKey, s.Amazon = "second-key", publicKey(t), amazon("second-key")
		before := a.VerifyHeader(&models.Webhook{At: time.Now()})
		providers.SetKeys(a, s)
		parts := a.Send(t.Context(), providertest.SampleCall(1))
		if second := <-got; first == second || second == "" {
			t.Errorf("%s: the new key is not used", k.Name)
		}
		if after := a.VerifyHeader(&models.Webhook{At: time.Now()}); after != nil && after.Error() == before.Error() {
			t.Errorf("%s: the new webhook key is not used: %v", k.Name, after)
		}
		for _, p := range parts {
			if strings.Contains(p.Text, "-key") {
				t.Errorf("%s: %q shows a key", k.Name, p.Text)
			}
		}
		a.Close()
		server.Close()
	}
}

// The table of what each kind carries is made from the declarations: go test ./providers -update.
func TestCapabilitiesTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(
		"# What each kind of provider carries\n\nMade from the adapters' declarations, which their tests check.\n\n" +
			"| kind | recipients of a call | reply-to | own header fields | names, variables and metadata of each recipient | addresses beyond ASCII | tags | open and click tracking | cc, bcc | attachments |" +
			" inline images | bytes of a message |\n|---|--:|---|---|---|---|--:|---|---|---|---|--:|\n",
	)
	for _, k := range providers.Kinds() {
		p, err := k.New(providers.Settings{Name: "acc", Kind: k.Name, APIKey: "k", Domain: "mg.example.com",
			WebhookKey: publicKey(t), Pair: settings.Pair{SecretKey: "s"}, Server: settings.Server{Host: "127.0.0.1", Port: 25},
			Amazon: amazon("k")})
		if err != nil {
			t.Fatal(err)
		}
		yes, counted := map[bool]string{true: "yes", false: "no"}, map[bool]string{true: ", attachments as base64"}
		tracking := yes[k.Carries.Tracking]
		if k.Carries.OwnTracking {
			tracking = "as its settings say"
		}
		inline := yes[k.Carries.Inline]
		if k.Carries.Inline && !k.Carries.InlineNames {
			inline += ", named by their content id"
		}
		headers := "of all recipients"
		if k.Carries.Headers {
			headers = "also of each recipient"
		}
		if k.Carries.Headers && !k.Carries.HeaderNames {
			headers += ", if all have fields of the same names"
		}
		names := yes[k.Carries.Names]
		if k.Carries.Names && !k.Carries.NameMarks {
			names = "yes without commas and semicolons"
		}
		fields := names + ", " + yes[k.Carries.Variables] + ", " + yes[k.Carries.Metadata]
		fmt.Fprintf(
			&b,
			"| %s | %d | %s | %s | %s | %s | %d | %s | %s | %s | %s | %d%s |\n",
			k.Title,
			p.MaxRecipients(),
			map[bool]string{true: "one", false: "several"}[k.Carries.OneReply],
			headers,
			fields,
			yes[k.Carries.UTF8],
			k.Carries.Tags,
			tracking,
			yes[k.Carries.Copies],
			yes[k.Carries.Attachments],
			inline,
			k.Carries.Size,
			counted[k.Carries.Base64],
		)
		p.Close()
	}
	b.WriteString(
		"\nOf a message with more tags the first ones are passed on. Where names are carried without commas and semicolons,\n" +
			"these become spaces, also in the names of senders. The log of each recipient says what was left out.\n" +
			"A provider that cannot carry a message is not used for it, and the log says why.\n\n" +
			"Providers receive only our log and attempt IDs as metadata, which their events bring back. Your metadata is not sent to them.\n" +
			"The header fields of a recipient are those of the batch and its own. `POST /v1/batches?dry_run=true` says which\n" +
			"provider cannot carry them. Addresses beyond ASCII are those with such characters before the @ (RFC 6531). No kind\n" +
			"takes them, so they are refused when a batch is accepted. International domains are converted to punycode.\n\n" +
			"An attachment of type `text/calendar; method=REQUEST` is passed on with its parameter, so that mail programs offer\n" +
			"to accept it. SendGrid takes exactly this one (sendgrid-nodejs issues 217 and 1313). Mailgun takes the type from the\n" +
			"header of the file's part, and documents nothing about parameters. All send a file, no alternative of the text.\n\n" +
			"What is not documented is read in the way that can do no harm:\n\n" +
			"- Postmark and Resend have no variables: each recipient's mail is written here. All mail goes through Postmark's\n" +
			"  stream `outbound`. Its refusal of an inactive address does not say whether it bounced or its owner complained;\n" +
			"  it counts as a bounce, and complaints are read from its list. Of one mail to several, inactive ones get nothing.\n" +
			"- Resend drops the attachments of a batch (utopia-php/messaging issue 120), so a message with attachments goes to one\n" +
			"  recipient a call. Its events do not say which of several recipients they are about, so it gets no cc and bcc. Its\n" +
			"  tags are only letters, digits, `_` and `-`, so those of messages are left out. It refuses quoted names, so that\n" +
			"  quotes, brackets and colons in names become spaces, too. No size of a batch is documented: it is taken for that of a mail.\n" +
			"- Brevo documents no header fields of message versions, and django-anymail uses them. Each version has ours; a tag of\n" +
			"  chunk and attempt, and the address of the event, say the same. Header fields of recipients are not used. A mail for one\n" +
			"  recipient has no version. Values beyond ASCII go out unencoded, so such header fields are refused, and reply-to names left\n" +
			"  out. No sizes are documented: 10 MB a mail and 20 MB a call are taken. No events of cc and bcc are, so it gets none.\n" +
			"  Texts are written here, without `params`. Braces that its template language could read become entities in HTML, and\n" +
			"  spaces in names; a mail with them in subject or text goes through another provider. It allows 100 calls a minute\n" +
			"  with versions: set `call_rate` to 1.6.\n" +
			"- A call to Brevo has an idempotency key in its body, which is used for 15 minutes: its guide says 30, its changelog 15. 201\n" +
			"  without ids counts as accepted. 409, `duplicate_request`, `duplicate_parameter` and words about the key prove nothing.\n" +
			"- Brevo does not say why it blocks an address. It counts as a bounce, and its list says the rest: an entry other than a\n" +
			"  bounce holds for one sender, which is its category. The log is asked for each attempt by its tag, as a JSON list. It is\n" +
			"  not documented that this works, so events without our tag are left out.\n" +
			"- Mailtrap's answers are words without codes: those that no rule knows refuse a mail only there. A category is its only\n" +
			"  tag, and ours is the chunk, by which its logs are searched. Several reply-to addresses go into a header field, as\n" +
			"  django-anymail does it. No size of a mail is documented: 10 MB are taken. Names of files beyond ASCII may arrive garbled.\n" +
			"  Its logs have no event ids, so that events are recognised by message, kind and time. How long it repeats webhooks is\n" +
			"  not documented: each outage is looked up. An entry of its list other than a bounce holds for a stream and a domain.\n" +
			"- Mailjet replaces `[[var:…]]` and `[[data:…]]` in bodies, so it gets no mail that has them, and each recipient's mail is\n" +
			"  written here. It refuses some header fields, like `List-Id`, and subjects of more than 255 characters. A message with\n" +
			"  several reply-to addresses is not sent through it. No size of a call is documented: 20 MB are taken for it. Its tag is\n" +
			"  a campaign with a limited alphabet, so tags are left out. Its custom ID has our log and attempt IDs, because its log\n" +
			"  lacks the payload. `blacklisted` counts as a bounce before. Only a hard bounce marks an address. An answer 4xx may\n" +
			"  have accepted some mails: each has its own result, and a list that cannot be read leaves the outcome unknown.\n" +
			"- SparkPost fills in the values of each recipient once, unescaped: they are escaped here. Braces that could be read as a\n" +
			"  template are values, too, and become spaces in names. No number of recipients and no size of a request is documented:\n" +
			"  1,000 and 30 MB are taken for them. Its answer counts the recipients that it refuses and does not name them, so the\n" +
			"  outcome of all is unknown then until their `injection` event. Mail with a field `List-Unsubscribe` is sent as not\n" +
			"  transactional. Mail to a suppressed address counts as a bounce; complaints and unsubscriptions are read from its list.\n" +
			"  An unsubscription from mail that is not transactional holds for the category `non_transactional`, or its list id.\n" +
			"- A call to Resend has an idempotency key of its chunk and attempt, for a day. An answer 409 leaves the outcome unknown.\n" +
			"  SparkPost's keys are new (August 2026), and nobody has reported on them. So they are not used: its events and its log\n" +
			"  say whether mail was accepted whose answer was lost.\n" +
			"- Amazon SES gets one request for up to 50 recipients, with a template that is part of it. Whether it escapes values is\n" +
			"  not documented for such templates: it is taken not to, as others found (aws-ses-v2-local pull request 101), and\n" +
			"  subject, text and HTML have values of their own. Braces that it could read as a tag are values, too. Templates of\n" +
			"  more than 500 kB, values of more than 256 kB, and `{{` in header fields go to one recipient a call, without a template.\n" +
			"  It gets no message without a subject. A file that it refuses by its name is refused only there.\n" +
			"- Tags of messages are left out at Amazon SES, which takes only letters, digits, `_` and `-`. Its events bring our IDs back\n" +
			"  only if a configuration set reports them; others are found by their message id. Of one mail to several, opens and\n" +
			"  clicks do not say whose they are, and are left out. With a low sending rate, set `CHUNK_LIMIT` to that rate.\n" +
			"- A result of Amazon SES without a known status, or with a message id beside an error, leaves the outcome unknown.\n" +
			"  `TRANSIENT_FAILURE` and `FAILED` are taken as not accepted. In the sandbox, an address that is not verified may be that\n" +
			"  of a recipient. Complaints of type `not-spam` and `auth-failure` are none.\n" +
			"- The certificate of Amazon SNS is read by HTTPS from Amazon only. If its file has further certificates, they must lead to a\n" +
			"  root; it is not documented that it has.\n",
	)
	providertest.Golden(t, "../../docs/capabilities.md", []byte(b.String()))
}
