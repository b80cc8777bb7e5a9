package parse

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "",
		"550 <user@example.com>: unknown":   "550 <address>: unknown",
		"to=user.name+tag@example.co.uk, x": "<address>, x",
		`"john doe"@example.com is gone`:    "<address> is gone",
		"user@[192.0.2.1] refused":          "<address> refused",
		"a%40b.test and c&#64;d.test":       "<address> and <address>",
		"josé@exämple.test.":                "<address>.",
		"@ alone, a@ and @b":                "(at) alone, a(at) and (at)b",
		"a@b@c.test":                        "<address>(at)c.test",
		"two\r\nlines\tand\x00more\u2028x":  "two lines and more x",
		"key SECRET was wrong":              "key <secret> was wrong",
		"bad \xff utf":                      "bad \ufffd utf",
	} {
		if got := Text(in, "SECRET", ""); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	for _, long := range []string{strings.Repeat("ü", 2000), strings.Repeat("user@example.com ", 5000),
		strings.Repeat("x", 100_000), strings.Repeat("@", 9000)} {
		if got := Text(long); len(got) > models.MaxText || strings.Contains(got, "user@") {
			t.Errorf("%d bytes of %.20q", len(got), got)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("550 <user@example.com>")
	f.Add("%40&#64;@\"@\"")
	f.Fuzz(func(t *testing.T, s string) {
		if got := Text(s); len(got) > models.MaxText || strings.ContainsAny(got, "\r\n\x00@") {
			t.Errorf("%q", got)
		}
	})
}

func TestReplies(t *testing.T) {
	for _, test := range []struct {
		code, enhanced, text string
		want                 Reply
		reason               models.Reason
	}{
		{"", "", "", Reply{}, ""},
		{"", "", "550-5.1.1 no", Reply{Code: 550}, ""},
		{"", "", "550 5.1.1 no", Reply{550, "5.1.1", ""}, models.MailboxInvalid},
		{"", "5.1.10", "x", Reply{0, "5.1.10", ""}, models.MailboxInvalid},
		{"", "550", "x", Reply{Code: 550}, ""},
		{"550", "", "user unknown", Reply{Code: 550}, models.MailboxInvalid},
		{"450", "", "user unknown", Reply{Code: 450}, ""},
		{"450", "4.1.1", "user unknown", Reply{450, "4.1.1", ""}, ""},
		{"553", "5.1.8", "sender domain", Reply{553, "5.1.8", ""}, models.PolicyReputation},
		{"552", "5.3.4", "", Reply{552, "5.3.4", ""}, models.TooLarge},
		{"552", "", "message too large", Reply{Code: 552}, models.TooLarge},
		{"552", "", "", Reply{Code: 552}, models.MailboxFull},
		{"450", "4.7.1", "Greylisted", Reply{450, "4.7.1", ""}, models.Greylisted},
		{"450", "4.7.1", "hm", Reply{450, "4.7.1", ""}, models.PolicyReputation},
		{"451", "4.4.2", "", Reply{451, "4.4.2", ""}, models.DNSOrConnect},
		{"554", "", "virus found", Reply{Code: 554}, models.Virus},
		{"554", "5.7.1", "see virustotal", Reply{554, "5.7.1", ""}, models.PolicyReputation},
		{"550", "", "The email account that you tried to reach does not exist", Reply{Code: 550}, models.MailboxInvalid},
		{"550", "5.4.1", "Recipient address rejected: Access denied. AS(201806281) [DB5EUR01FT012]",
			Reply{550, "5.4.1", ""}, models.MailboxInvalid},
		{"", "", "550 5.4.1 [ann (at) rcpt.test]: Recipient address rejected: Access denied",
			Reply{550, "5.4.1", ""}, models.MailboxInvalid},
		{"550", "5.4.1", "Relay access denied", Reply{550, "5.4.1", ""}, models.DNSOrConnect},
		{"550", "5.4.1", "no answer from host", Reply{550, "5.4.1", ""}, models.DNSOrConnect},
		{"450", "4.4.1", "Recipient address rejected: Access denied", Reply{450, "4.4.1", ""}, models.DNSOrConnect},
		{"550", "5.7.1", "Recipient address rejected: Access denied", Reply{550, "5.7.1", ""}, models.PolicyReputation},
		{"250", "2.0.0", "OK", Reply{250, "2.0.0", ""}, ""},
	} {
		got := NewReply(test.code, test.enhanced, test.text)
		test.want.Text = test.text
		if test.text == "550-5.1.1 no" {
			test.want.Enhanced = got.Enhanced
		}
		if got != test.want {
			t.Errorf("%+v: got %+v", test, got)
		}
		if test.text != "550-5.1.1 no" && got.Reason() != test.reason {
			t.Errorf("%+v: reason %q", test, got.Reason())
		}
	}
}

func TestFresh(t *testing.T) {
	now := time.Unix(1795262400, 0)
	for s, code := range map[string]string{"1795262400": "", "1795176000": "", "1795172300": "stale", "1795266000": "",
		"1795266100": "stale",
		"179526240":  "malformed", "17952624000": "malformed", "+795262400": "malformed", "179526240a": "malformed",
		"": "malformed"} {
		err := Fresh(s, now)
		var refusal *models.WebhookError
		_ = errors.As(err, &refusal)
		if code == "" && err != nil || code != "" && (refusal == nil || refusal.Code != code) {
			t.Errorf("%q: %v, want %q", s, err, code)
		}
	}
}

// A Str must be read as encoding/json reads a string.
func TestStr(t *testing.T) {
	for raw, want := range map[string]Str{
		`""`: "", `"a b"`: "a b", `"Größe"`: "Größe", `"a\"b\\c\n"`: "a\"b\\c\n", `"\u00e9\ud83d\ude00"`: "é😀",
		"\"a\xffb\"": "a\ufffdb", `12.5`: "12.5", `true`: "true", `null`: "", `{"a":"b"}`: "", `["a"]`: "",
	} {
		var got struct{ A Str }
		require.NoError(t, json.Unmarshal([]byte(`{"A":`+raw+`}`), &got), raw)
		require.Equal(t, want, got.A, raw)
	}
}

func TestRetryAt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	for name, c := range map[string]struct {
		reset, after string
		want         time.Time
	}{
		"nothing":             {"", "", time.Time{}},
		"seconds":             {"", "30", in(30 * time.Second)},
		"a date":              {"", "Thu, 01 Jan 2026 12:05:00 GMT", in(5 * time.Minute)},
		"unix seconds":        {"1767269100", "", in(5 * time.Minute)},
		"seconds until reset": {"60", "", in(time.Minute)},
		"the later, reset":    {"1767269100", "30", in(5 * time.Minute)},
		"the later, after":    {"1767268830", "600", in(10 * time.Minute)},
		"one that has passed": {"1767268700", "30", in(30 * time.Second)},
		"one too far ahead":   {"1867268700", "30", in(30 * time.Second)},
		"both are nonsense":   {"soon", "-5", time.Time{}},
		"longer than a day":   {"", "90000", time.Time{}},
	} {
		h := http.Header{}
		if c.reset != "" {
			h.Set("X-RateLimit-Reset", c.reset)
		}
		if c.after != "" {
			h.Set("Retry-After", c.after)
		}
		require.Equal(t, c.want, RetryAt(h, now), name)
	}
}

// TestTextOfPages: of an HTML page, as proxies send them, the visible text is kept.
func TestTextOfPages(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"<html><head><title>503 Service Temporarily Unavailable</title></head>\r\n<body bgcolor=\"white\">\r\n" +
			"<div><h1>503 Service Temporarily Unavailable</h1></div>\r\n<hr><div>nginx</div></body></html>": "503 Service Temporarily Unavailable nginx",
		"<!DOCTYPE html><html><style>p {color: red}</style><script>if (a < b) {}</script><p>Bad &amp; gone: ann&#64;example.com": "Bad & gone: <address>",
		"  <HTML><body>Gateway<br/>time-out": "Gateway time-out",
		"<html><body></body></html>":         "",
		"no recipient <ann@example.com>":     "no recipient <address>",
		"a <b and c> d":                      "a <b and c> d",
	} {
		require.Equal(t, want, Text(page))
	}
}

// TestSpaced: a reply of only a code gets a space, wherever it is cut, and nothing else changes.
func TestSpaced(t *testing.T) {
	t.Parallel()
	const replies = "220\r\n250-a\r\n250 b\r\n250-\r\n250\n\r\n25\r\n2500\r\n354\r\n"
	const want = "220 \r\n250-a\r\n250 b\r\n250-\r\n250 \n\r\n25\r\n2500\r\n354 \r\n"
	for size := 1; size <= len(replies); size++ {
		client, server := net.Pipe()
		go func() {
			for rest := []byte(replies); len(rest) > 0; {
				n := min(size, len(rest))
				_, _ = server.Write(rest[:n])
				rest = rest[n:]
			}
			_ = server.Close()
		}()
		got, err := io.ReadAll(Spaced(client))
		require.NoError(t, err)
		require.Equal(t, want, string(got), "in pieces of %d bytes", size)
	}
}
