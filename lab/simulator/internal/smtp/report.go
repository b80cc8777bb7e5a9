package smtp

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// reports are what the server finds out about mail that it has accepted, as fields of a report of delivery (RFC 3464).
var reports = map[message.Outcome]string{
	message.Async:  "Action: failed\r\nStatus: 5.1.1\r\nDiagnostic-Code: smtp; 550 5.1.1 No such user",
	message.Expire: "Action: failed\r\nStatus: 4.4.7\r\nDiagnostic-Code: smtp; 421 4.4.7 Delivery time expired",
	message.Defer:  "Action: delayed\r\nStatus: 4.2.0\r\nDiagnostic-Code: smtp; 451 4.2.0 Greylisted, try later",
}

// Report returns the mail that reports the outcome of an accepted mail to its sender. It reports false if there is none.
func Report(o message.Outcome, from, to string) (string, bool) {
	kind, fields, id := "delivery-status", reports[o], rand.Text()
	switch {
	case o == message.Complain:
		kind, fields = "feedback-report", "Feedback-Type: abuse\r\nVersion: 1\r\nOriginal-Rcpt-To: "+to
	case fields == "":
		return "", false
	default:
		fields = "Reporting-MTA: dns; simulator.test\r\n\r\nFinal-Recipient: rfc822; " + to + "\r\n" + fields
	}
	return fmt.Sprintf("Delivered-To: %[1]s\r\nFrom: MAILER-DAEMON@simulator.test\r\nTo: %[1]s\r\nDate: %[2]s\r\n"+
		"Message-ID: <%[3]s@simulator.test>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/report; boundary=%[3]s\r\n\r\n"+
		"--%[3]s\r\nContent-Type: message/%[4]s\r\n\r\n%[5]s\r\n\r\n--%[3]s--\r\n",
		from, time.Now().Format(time.RFC1123Z), id, kind, fields), true
}
