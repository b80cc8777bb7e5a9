package parse

import (
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// A Reply is the reply of a receiving server (RFC 5321, 4.2), with its enhanced status
// code (RFC 3463) if it has one.
type Reply struct {
	Code     int    // 250, 421, 550; 0: none
	Enhanced string // "5.1.1"; empty: none
	Text     string
}

var (
	replyCode    = regexp.MustCompile(`^\s*([245]\d\d)(?:[ -]|$)`)
	enhancedCode = regexp.MustCompile(`(?:^|[\s(#])([245]\.\d{1,3}\.\d{1,3})(?:[^\d.]|$)`)
	wholeCode    = regexp.MustCompile(`^[245]\.\d{1,3}\.\d{1,3}$`)
)

// NewReply reads a reply from a provider's fields: a code, an enhanced code, and a text.
// Either code may be missing or be in the other field, and the text may begin with both.
func NewReply(code, enhanced, text string) Reply {
	r := Reply{Text: text}
	for _, s := range [2]string{strings.TrimSpace(code), strings.TrimSpace(enhanced)} {
		if n, err := strconv.Atoi(s); err == nil && n >= 200 && n < 700 && r.Code == 0 {
			r.Code = n
		}
		if r.Enhanced == "" && wholeCode.MatchString(s) {
			r.Enhanced = s
		}
	}
	if len(text) > 1024 {
		text = text[:1024]
	}
	if m := replyCode.FindStringSubmatch(text); m != nil && r.Code == 0 {
		r.Code, _ = strconv.Atoi(m[1])
	}
	if m := enhancedCode.FindStringSubmatch(text); m != nil && r.Enhanced == "" {
		r.Enhanced = m[1]
	}
	return r
}

// Permanent reports whether the reply is a permanent failure.
func (r Reply) Permanent() bool {
	return strings.HasPrefix(r.Enhanced, "5.") || r.Enhanced == "" && r.Code >= 500 && r.Code < 600
}

// enhancedReasons maps enhanced codes without their class (RFC 3463 and the IANA
// registry). The longer key wins. x.1.7 and x.1.8 are about the sender's address.
var enhancedReasons = map[string]models.Reason{
	"1.7": models.PolicyReputation, "1.8": models.PolicyReputation, "1": models.MailboxInvalid,
	"2.1": models.MailboxFull, "2.2": models.MailboxFull, "2.3": models.TooLarge,
	"3.4": models.TooLarge,
	"4.1": models.DNSOrConnect, "4.2": models.DNSOrConnect, "4.3": models.DNSOrConnect, "4.4": models.DNSOrConnect,
	"4.5": models.RateLimited, "4.7": models.DeliveryTimeout,
	"7": models.PolicyReputation,
}

// edgeBlocked matches the text with which Microsoft 365 refuses an address that its domain does not have, "550 5.4.1
// Recipient address rejected: Access denied". RFC 3463 gives 5.4.1 another meaning, no answer from the host. So this
// is a reading, by Microsoft's page "Fix NDR error code 550 5.4.1 in Exchange Online": directory-based edge blocking
// blocks the message because the recipient's address is not valid. A new mailbox can have this answer until it is known
// everywhere.
var edgeBlocked = regexp.MustCompile(`recipient address rejected: access denied`)

// textReasons maps texts of servers. The first entry that matches counts. Hard ones count
// only in permanent replies.
var textReasons = []struct {
	reason models.Reason
	hard   bool
	words  *regexp.Regexp
}{
	{models.Virus, true, regexp.MustCompile(`virus (was )?(found|detected)|contains? a virus|infected with`)},
	{models.Greylisted, false, regexp.MustCompile(`gr[ea]y ?-?list`)},
	{models.MailboxFull, false, regexp.MustCompile(`mailbox (is )?full|over ?-?quota|quota exceeded|` +
		`exceeded (its |the )?(storage|quota)|insufficient (system )?storage|out of storage`)},
	{models.MailboxInvalid, true, regexp.MustCompile(`user unknown|unknown user|` +
		`no such (user|recipient|mailbox|address)|` +
		`(user|mailbox|recipient|account|address)[^.;]{0,60} (does not|doesn't) exist|` +
		`recipient (not found|unknown)|unknown recipient|no mailbox here`)},
	{models.TooLarge, false, regexp.MustCompile(`too (large|big)|(exceeds|maximum)[a-z ]* size|size limit`)},
	{models.RateLimited, false, regexp.MustCompile(`rate ?-?limit|too many|throttl|frequency|try again later`)},
	{models.DNSOrConnect, false, regexp.MustCompile(`\bmx\b|\bdns\b|connection (refused|reset|timed out)|timed? ?-?out|` +
		`host (not found|unreachable)|unable to (resolve|connect)|(could not|cannot|can't) (connect|resolve)|` +
		`no route|network`)},
	{models.PolicyContent, false, regexp.MustCompile(`spam|content|phish|malicious|url`)},
	{models.PolicyReputation, false, regexp.MustCompile(`reputation|block ?-?list|blacklist|blocked|spamhaus|barracuda|` +
		`dmarc|\bspf\b|dkim|polic|not allowed|denied|refused|rejected`)},
}

// Reason returns the reason that the reply gives, or "" if it is not known. It never
// returns mailbox_invalid, which would end a log, for a temporary reply.
func (r Reply) Reason() models.Reason {
	text := strings.ToLower(r.Text)
	if len(text) > 1024 {
		text = text[:1024]
	}
	class, detail, _ := strings.Cut(r.Enhanced, ".")
	if class == "5" && detail == "4.1" && edgeBlocked.MatchString(text) {
		return models.MailboxInvalid
	}
	if class == "5" || class == "4" {
		subject, _, _ := strings.Cut(detail, ".")
		reason, ok := enhancedReasons[detail]
		if !ok {
			reason, ok = enhancedReasons[subject]
		}
		switch {
		case class == "4" && ok && (reason == models.MailboxInvalid || reason == models.PolicyReputation):
			// The text of a temporary policy reply says what it is about.
			if word := byWords(text, false); word != "" || reason == models.MailboxInvalid {
				return word
			}
			return reason
		case ok:
			return reason
		}
	}
	if reason := byWords(text, r.Permanent()); reason != "" {
		return reason
	}
	if r.Code == 552 {
		return models.MailboxFull
	}
	return ""
}

// byWords returns the reason of the first entry of textReasons that matches.
func byWords(text string, permanent bool) models.Reason {
	for _, t := range textReasons {
		if (permanent || !t.hard) && t.words.MatchString(text) {
			return t.reason
		}
	}
	return ""
}

// ListedBounce returns why an address on a provider's list of bounces is suppressed, from the code
// and the text of the list. Only a bounce because of a full mailbox, a policy or the like may end
// differently at another provider: its reason is empty.
func ListedBounce(code, text string) models.SuppressionReason {
	switch NewReply(code, code, text).Reason() {
	case "", models.MailboxInvalid:
		return models.HardBounce
	}
	return ""
}

// spaced is a connection to a mail server, with the space that some replies lack.
type spaced struct {
	net.Conn
	column int    // in the line that is read
	held   []byte // read from the connection, and not yet by the caller
}

// Spaced returns a connection that reads a reply of only a code with a space after it: servers may leave it out
// (RFC 5321, 4.2), and net/textproto refuses such a reply.
func Spaced(c net.Conn) net.Conn { return &spaced{Conn: c} }

// Read implements io.Reader.
func (s *spaced) Read(b []byte) (int, error) {
	if len(s.held) == 0 {
		n, err := s.Conn.Read(b)
		if n == 0 {
			return 0, err
		}
		for _, c := range b[:n] {
			if s.column == 3 && (c == '\r' || c == '\n') {
				s.held = append(s.held, ' ')
			}
			switch s.column++; c {
			case '\r':
				s.column = 4 // beyond the code
			case '\n':
				s.column = 0
			}
			s.held = append(s.held, c)
		}
	}
	n := copy(b, s.held)
	s.held = s.held[n:]
	return n, nil
}
