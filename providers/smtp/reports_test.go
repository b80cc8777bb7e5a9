package smtp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/report"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

const reportKey = "a-key-of-twenty-or-more-characters"

// withBounces gives an adapter a mailbox for reports.
func withBounces(s *settings.Settings) {
	s.WebhookKey = reportKey
	s.BounceAddress, s.BounceMaildir = "bounces@news.example.com", "/var/mail/bounces"
}

// bounced returns an adapter with a mailbox, and the log of a mail that it sent.
func bounced(t testing.TB, change ...func(*settings.Settings)) (*Adapter, models.ID) {
	t.Helper()
	s := settings.Settings{Name: "relay", Kind: "smtp", Server: common.Server{Host: "127.0.0.1"}}
	withBounces(&s)
	for _, f := range change {
		f(&s)
	}
	p, err := New(s)
	require.NoError(t, err)
	return p, models.NewBatchID(time.Now()).Log(7)
}

// status64 is a report in base64, of an address that its server does not know by words alone.
var status64 = base64.StdEncoding.EncodeToString([]byte("Reporting-MTA: dns; mx.example.com\r\n\r\n" +
	"Final-Recipient: RFC822; ann@example.org\r\nAction: failed\r\nStatus: 5.0.0\r\n" +
	"Diagnostic-Code: SMTP; 550 <ann@example.org>: No such user here\r\n"))

// mailOf returns a mail of testdata, with the line breaks of mail and the token of a mail of ours.
func mailOf(t testing.TB, name, token string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata/reports", name))
	require.NoError(t, err)
	sender := strings.NewReplacer("TOKEN", token, "STATUS64", status64, "\n", "\r\n")
	return []byte(sender.Replace(string(raw)))
}

// TestReports: what mail servers and mailbox providers send about a mail becomes its events.
func TestReports(t *testing.T) {
	t.Parallel()
	p, log := bounced(t)
	type want struct {
		kind             models.EventKind
		reason           models.Reason
		status           int
		enhanced, inText string
	}
	for name, c := range map[string]want{
		"postfix-failed":    {models.Bounced, models.MailboxInvalid, 550, "5.1.1", "User unknown in virtual mailbox table"},
		"postfix-delayed":   {models.Deferred, models.DNSOrConnect, 0, "4.4.1", "Connection timed out"},
		"postfix-expired":   {models.Bounced, models.DNSOrConnect, 0, "4.4.1", "Connection timed out"},
		"postfix-delivered": {models.Delivered, "", 250, "2.0.0", "queued as 1"},
		"postfix-relayed":   {models.Processed, "", 250, "2.0.0", "queued as 1"},
		"exim-failed":       {models.Bounced, models.MailboxFull, 552, "5.2.2", "Mailbox full"},
		"exchange-failed":   {models.Bounced, models.MailboxInvalid, 550, "5.1.10", "RESOLVER.ADR.RecipientNotFound"},
		"gmail-failed":      {models.Blocked, models.PolicyReputation, 550, "5.7.1", "this message has been blocked"},
		"amazon-failed":     {models.Bounced, models.DeliveryTimeout, 550, "4.4.7", "Message expired"},
		"sendmail-base64":   {models.Bounced, models.MailboxInvalid, 550, "5.0.0", "No such user here"},
		"arf-abuse":         {models.Complained, "", 0, "", ""},
		"arf-redacted":      {models.Complained, "", 0, "", ""},
		"arf-not-spam":      {},
		"qmail":             {},
		"autoreply":         {},
	} {
		token := p.token(log, 3)
		if name == "sendmail-base64" { // its fields for the envelope have angle brackets
			token = strings.ToUpper(token) // and some servers change the case
		}
		out := p.Parse(mailOf(t, name+".eml", token))
		if c.kind == "" {
			require.Empty(t, out.Events, name)
			require.Len(t, out.Skipped, 1, name)
			continue
		}
		require.Len(t, out.Events, 1, "%s: %v", name, out.Skipped)
		ev := out.Events[0]
		require.Equal(t, log, ev.Log, name)
		require.Equal(t, 3, ev.Event.Attempt, name)
		require.Equal(t, want{ev.Event.Kind, ev.Event.Reason, ev.Event.Status, ev.Event.Enhanced, c.inText}, c, name)
		require.Contains(t, ev.Event.Text, c.inText, name)
		require.NotContains(t, ev.Event.Text, "@", name)
		require.NotEmpty(t, ev.Event.ID, name)
		require.False(t, ev.Event.At.IsZero(), name)
		if !strings.Contains(name, "redacted") {
			require.Equal(t, "ann@example.org", ev.Address, name)
		}
	}
}

// TestReportIsOfItsMail: a report needs the token of a mail, and is about no other. Of two tokens, the one in the address
// of the report counts.
func TestReportIsOfItsMail(t *testing.T) {
	t.Parallel()
	p, log := bounced(t)
	mine, other := p.token(log, 1), p.token(log.ChunkID().Log(8), 1)
	require.NotEqual(t, mine, other)
	events := func(p *Adapter, token string) int {
		return len(p.Parse(mailOf(t, "postfix-failed.eml", token)).Events)
	}
	require.Equal(t, 1, events(p, mine))
	for i := range mine { // every change of a token
		for _, c := range []string{"a", "b", "7"} {
			forged := mine[:i] + c + mine[i+1:]
			if raw, err := alphabet.DecodeString(forged); err == nil && alphabet.EncodeToString(raw) == mine {
				continue // the last character has unused bits
			}
			require.Zero(t, events(p, forged), "%d %s", i, c)
		}
	}
	for _, token := range []string{"", "x", mine[:43], mine + "a", strings.Repeat("a", 44), log.String()} {
		require.Zero(t, events(p, token), token)
	}
	quoted := bytes.Replace(mailOf(t, "exchange-failed.eml", mine), []byte("Safedelivr-Id: "+mine),
		[]byte("Safedelivr-Id: "+other), 1)
	require.Equal(t, log, p.Parse(quoted).Events[0].Log)

	namesake, _ := bounced(t, func(s *settings.Settings) { s.Name = "relay-b" })
	require.Zero(t, events(namesake, mine), "the mail of another provider with the same key")
	stranger, _ := bounced(t, func(s *settings.Settings) { s.WebhookKey = reportKey + "x" })
	require.Zero(t, events(stranger, mine), "another key")
	none, err := New(settings.Settings{Name: "relay", Kind: "smtp", Server: common.Server{Host: "127.0.0.1"}})
	require.NoError(t, err)
	require.Zero(t, events(none, none.token(log, 1)), "without a key nothing is genuine")
	require.Empty(t, none.token(log, 1))
}

// TestReportAfterNewKey: the key before verifies as long as it is set, and a stale one does not.
func TestReportAfterNewKey(t *testing.T) {
	t.Parallel()
	p, log := bounced(t)
	old := mailOf(t, "postfix-failed.eml", p.token(log, 1))
	changed := settings.Settings{}
	withBounces(&changed)
	changed.WebhookKey, changed.WebhookKeyOld = strings.Repeat("n", 20), reportKey
	p.SetKeys(changed)
	require.Len(t, p.Parse(old).Events, 1)
	require.Len(t, p.Parse(mailOf(t, "postfix-failed.eml", p.token(log, 1))).Events, 1)
	changed.WebhookKeyOld = ""
	p.SetKeys(changed)
	require.Empty(t, p.Parse(old).Events)
}

// TestReportAgain: a report that is read again has the same events, and another report about the mail has others.
func TestReportAgain(t *testing.T) {
	t.Parallel()
	p, log := bounced(t)
	first := mailOf(t, "postfix-failed.eml", p.token(log, 1))
	same, _ := bounced(t) // the process that goes on
	require.Equal(t, p.Parse(first), same.Parse(first))
	again := append([]byte("Received: by a loop\r\n"), first...)
	require.Equal(t, p.Parse(first), p.Parse(again), "another copy of it")
	other := bytes.Replace(first, []byte("Message-Id: <4Bx"), []byte("Message-Id: <5Bx"), 1)
	require.NotEqual(t, p.Parse(first).Events[0].Event.ID, p.Parse(other).Events[0].Event.ID)
}

// TestReportsOfSeveral: of one mail to several, a report names the addresses that it is about.
func TestReportsOfSeveral(t *testing.T) {
	t.Parallel()
	p, log := bounced(t)
	raw := bytes.Replace(mailOf(t, "postfix-failed.eml", p.token(log, 1)), []byte("\r\nFinal-Recipient"),
		[]byte("\r\nFinal-Recipient: rfc822;<bob@example.org>\r\nAction: delayed (for now)\r\nStatus: 5.1.1 (odd)\r\n"+
			"\r\nAction: unheard-of\r\nFinal-Recipient: rfc822;c@example.org\r\n\r\nFinal-Recipient"), 1)
	out := p.Parse(raw)
	require.Len(t, out.Events, 2)
	require.Equal(t, "bob@example.org", out.Events[0].Address)
	require.Equal(t, models.Deferred, out.Events[0].Event.Kind)
	require.Empty(t, out.Events[0].Event.Reason, "mail that is still tried has no mailbox that does not exist")
	require.Equal(t, "ann@example.org", out.Events[1].Address)
	require.Len(t, out.Skipped, 1)
}

// TestBrokenReports: a report that was cut off, or is hidden too deep, has no events. What follows it may be missing.
func TestBrokenReports(t *testing.T) {
	t.Parallel()
	p, log := bounced(t)
	whole := mailOf(t, "postfix-failed.eml", p.token(log, 1))
	after := bytes.Index(whole, []byte("Content-Description: Undelivered"))
	for n := range whole {
		if got := len(p.Parse(whole[:n]).Events); n < after-60 && got > 0 || n >= after && got != 1 {
			require.Fail(t, "wrong", "%d events of %d bytes", got, n)
		}
	}
	long := bytes.Replace(whole, []byte("Return-Path: <bounces"),
		[]byte(strings.Repeat("X: y\r\n", 1<<20)+"Return-Path: <b"), 1)
	require.Len(t, p.Parse(long[:report.MaxSize]).Events, 1, "the mail that it is about is cut off")
	nested := func(depth int) []byte {
		raw := whole
		for i := range depth {
			raw = fmt.Appendf(nil, "To: x\r\nContent-Type: multipart/mixed; boundary=n%d\r\n\r\n--n%d\r\n"+
				"Content-Type: message/rfc822\r\n\r\n%s\r\n--n%d--\r\n", i, i, raw, i)
		}
		return raw
	}
	require.Len(t, p.Parse(nested(1)).Events, 1, "it was forwarded")
	require.Empty(t, p.Parse(nested(50)).Events)
	for _, raw := range []string{"", "\r\n", "\r\n\r\n", "To: x", "Content-Type: multipart/report\r\n\r\n--\r\n--",
		"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n--b--"} {
		require.Empty(t, p.Parse([]byte(raw)).Events, raw)
	}
}

// TestReturnPath: with an address for reports, each mail has its own sender of the envelope, and names itself. Its length
// is within the limit.
func TestReturnPath(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, "DSN")
	p := newAdapter(t, s, withBounces)
	c := call(2)
	require.Equal(t, "accepted accepted", classes(t, c, p.Send(t.Context(), c)))
	for i, m := range s.taken() {
		token := p.token(c.Recipients[i].Log, c.Attempt)
		require.Equal(t, "bounces+"+token+"@news.example.com", m.from)
		require.Contains(t, m.body, "X-Safedelivr-Id: "+token+"\r\n")
		require.Contains(t, m.body, "From: =?utf-8?q?Gr=C3=B6=C3=9Fe?= <from@x.test>")
		log, attempt, ok := p.named(token)
		require.True(t, ok)
		require.Equal(t, c.Recipients[i].Log, log)
		require.Equal(t, 1, attempt)
	}
	require.Len(t, strings.Repeat("b", maxBounceName)+"+"+p.token(c.Recipients[0].Log, 1), 64)
	log, attempt, ok := p.named(p.token(c.Recipients[0].Log, 1_000_000))
	require.True(t, ok)
	require.Equal(t, 1_000_000, attempt)
	require.Equal(t, c.Recipients[0].Log, log)
	require.Empty(t, p.token(log, 1_000_001), "no event could name it")
	together := call(2)
	together.Recipients[0].Role, together.Recipients[1].Role = models.To, models.CC
	require.Equal(t, "accepted accepted", classes(t, together, p.Send(t.Context(), together)))
	require.Contains(t, s.taken()[2].from, p.token(together.Recipients[0].Log, 1))
}

// TestBounceSettings: mistakes are reported together.
func TestBounceSettings(t *testing.T) {
	t.Parallel()
	imap := func(s *settings.Settings) {
		s.BounceMaildir, s.BounceHost, s.BounceUser, s.BouncePassword = "", "imap.example.com", "u", "p"
	}
	for name, c := range map[string]struct {
		change func(*settings.Settings)
		want   []string
	}{
		"a Maildir":   {func(*settings.Settings) {}, nil},
		"IMAP":        {imap, nil},
		"no address":  {func(s *settings.Settings) { s.BounceAddress = "" }, []string{"bounce_address"}},
		"no domain":   {func(s *settings.Settings) { s.BounceAddress = "bounces" }, []string{"bounce_address"}},
		"a name":      {func(s *settings.Settings) { s.BounceAddress = "B <b@x.example>" }, []string{"bounce_address"}},
		"the longest": {func(s *settings.Settings) { s.BounceAddress = strings.Repeat("b", 19) + "@x.example" }, nil},
		"too long": {func(s *settings.Settings) { s.BounceAddress = strings.Repeat("b", 20) + "@x.example" },
			[]string{"bounce_address"}},
		"no key":            {func(s *settings.Settings) { s.WebhookKey = "" }, []string{"webhook_key"}},
		"a short key":       {func(s *settings.Settings) { s.WebhookKey = "short" }, []string{"webhook_key"}},
		"no mailbox":        {func(s *settings.Settings) { s.BounceMaildir = "" }, []string{"bounce_maildir"}},
		"two mailboxes":     {func(s *settings.Settings) { s.BounceHost = "imap.example.com" }, []string{"bounce_maildir"}},
		"a path of nowhere": {func(s *settings.Settings) { s.BounceMaildir = "Maildir" }, []string{"bounce_maildir"}},
		"no host":           {func(s *settings.Settings) { imap(s); s.BounceHost = "imap://x" }, []string{"bounce_imap_host"}},
		"no user":           {func(s *settings.Settings) { imap(s); s.BounceUser = "" }, []string{"bounce_imap_user"}},
		"readable":          {func(s *settings.Settings) { imap(s); s.BounceTLS = common.NoTLS }, []string{"bounce_imap_tls"}},
		"no password":       {func(s *settings.Settings) { imap(s); s.BouncePassword = "" }, []string{"bounce_imap_user"}},
		"an access token": {func(s *settings.Settings) {
			imap(s)
			s.BouncePassword, s.User, s.OAuth = "", "u", common.OAuth{TokenURL: "https://x.test/", ClientID: "c", ClientSecret: "s"}
		}, nil},
		"no such encryption": {func(s *settings.Settings) { imap(s); s.BounceTLS = "ssl" }, []string{"bounce_imap_tls"}},
		"several": {func(s *settings.Settings) { s.BounceAddress, s.WebhookKey, s.BounceMaildir = "", "", "x" },
			[]string{"bounce_address", "webhook_key", "bounce_maildir"}},
	} {
		s := settings.Settings{Name: "r", Kind: "smtp", Server: common.Server{Host: "127.0.0.1"}}
		withBounces(&s)
		c.change(&s)
		var got []string
		for _, err := range Check(s) {
			var m settings.Mistake
			require.ErrorAs(t, err, &m)
			got = append(got, m.Setting)
		}
		require.Equal(t, c.want, got, name)
	}
}

// maildir returns a Maildir with mails.
func maildir(t *testing.T, mails map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"new", "cur", "tmp"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	for name, raw := range mails {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new", name), raw, 0o600))
	}
	return dir
}

// names returns the names in a folder of a Maildir, in order.
func names(t *testing.T, dir, folder string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, folder))
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestReadReports: reports are removed only after they were stored, and other mail is marked as read. If the process is
// killed before a report is removed, the next one stores it again, and it has the same events.
func TestReadReports(t *testing.T) {
	t.Parallel()
	dir := maildir(t, nil)
	p, log := bounced(t, func(s *settings.Settings) { s.BounceMaildir = dir })
	put := func(name string, raw []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new", name), raw, 0o600))
	}
	put("1.report", mailOf(t, "postfix-failed.eml", p.token(log, 1)))
	put("2.answer", mailOf(t, "autoreply.eml", p.token(log, 1)))
	put("3.forged", mailOf(t, "postfix-failed.eml", strings.Repeat("a", 44)))
	put("4.broken", []byte("\x00\xff"))
	put("5.empty", nil)

	var stored []models.Post
	crashed := errors.New("the process was killed")
	_, err := p.ReadReports(t.Context(), func(posts []models.Post) error {
		stored = append(stored, posts...)
		return crashed
	})
	require.EqualError(t, err, crashed.Error())
	require.Len(t, names(t, dir, "new"), 5)
	others, err := p.ReadReports(t.Context(), func(posts []models.Post) error {
		stored = append(stored, posts...)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 4, others)
	require.Empty(t, names(t, dir, "new"))
	require.Equal(t, []string{"2.answer:2,S", "3.forged:2,S", "4.broken:2,S", "5.empty:2,S"}, names(t, dir, "cur"))
	require.Len(t, stored, 2)
	require.Equal(t, p.Parse(stored[0].Body), p.Parse(stored[1].Body))

	account, err := p.Inspect(t.Context(), "")
	require.Error(t, err, "no mail server")
	require.Empty(t, account.Findings)
}

// TestInspectMailbox: the check of a provider opens the mailbox, too.
func TestInspectMailbox(t *testing.T) {
	t.Parallel()
	dir := maildir(t, nil)
	server := newServer(t, nil)
	find := func(dir string) string {
		p := newAdapter(t, server, withBounces, func(s *settings.Settings) { s.BounceMaildir = dir })
		account, err := p.Inspect(context.Background(), "")
		require.NoError(t, err)
		last := account.Findings[len(account.Findings)-1]
		return string(last.State) + " " + last.About
	}
	require.Equal(t, "ok mailbox", find(dir))
	require.Equal(t, "wrong mailbox", find(filepath.Join(dir, "none")))
	require.Empty(t, names(t, dir, "new"))
}

// FuzzReports: no mail breaks the parser, and all events are about the mail of its token.
func FuzzReports(f *testing.F) {
	p, log := bounced(f)
	files, err := filepath.Glob("testdata/reports/*.eml")
	require.NoError(f, err)
	for _, file := range files {
		f.Add(mailOf(f, filepath.Base(file), p.token(log, 1)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		out := p.Parse(raw)
		for _, ev := range out.Events {
			if !bytes.Contains(bytes.ToLower(raw), []byte(p.token(ev.Log, ev.Event.Attempt)[:43])) &&
				!bytes.Contains(bytes.ToLower(raw), []byte("encoding")) {
				t.Fatalf("an event without its token: %+v", ev)
			}
			if ev.Event.ID == "" || strings.Contains(ev.Event.Text, "@") || !ev.Event.Kind.Valid() {
				t.Fatalf("%+v", ev)
			}
		}
	})
}

// FuzzToken: no text is a token but those that the adapter made.
func FuzzToken(f *testing.F) {
	p, log := bounced(f)
	f.Add(p.token(log, 1))
	f.Add(strings.Repeat("a", 44))
	f.Fuzz(func(t *testing.T, text string) {
		if id, attempt, ok := p.named(text); ok {
			made, err := alphabet.DecodeString(p.token(id, attempt))
			require.NoError(t, err)
			given, err := alphabet.DecodeString(text)
			require.NoError(t, err)
			require.Equal(t, made, given)
		}
	})
}
