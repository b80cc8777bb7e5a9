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
		"mailjet": models.Processed, "mailtrap": models.Processed, "smtp2go": models.Deferred}
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

// TestPagesNameEachKind: the pages that list the kinds name each of them.
func TestPagesNameEachKind(t *testing.T) {
	for _, name := range []string{"README.md", "CHANGELOG.md", "docs/comparison.md", "docs/simulator.md"} {
		page, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range apis() {
			if !strings.Contains(string(page), k.Title) {
				t.Errorf("%s does not name %s", name, k.Title)
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
			var keys string
			for _, name := range []string{"Authorization", "Token", "Key"} {
				for field := range r.Header {
					if strings.HasSuffix(field, name) {
						keys += r.Header.Get(field)
					}
				}
			}
			got <- keys
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

// The table of what each kind carries is made from the declarations: go test ./providers -update. The text around it is
// testdata/capabilities.md.
func TestCapabilitiesTable(t *testing.T) {
	var b strings.Builder
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
		if k.Carries.MessageID {
			headers += ", Message-ID"
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
	text, err := os.ReadFile("testdata/capabilities.md")
	if err != nil {
		t.Fatal(err)
	}
	providertest.Golden(t, "../../docs/capabilities.md", []byte(strings.Replace(string(text), "<kinds>\n", b.String(), 1)))
}
