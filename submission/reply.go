package submission

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emersion/go-smtp"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mailparse"
	"github.com/safedelivr/safedelivr/service/problem"
)

// reply returns the answer to a command.
func reply(code int, enhanced smtp.EnhancedCode, format string, args ...any) *smtp.SMTPError {
	return &smtp.SMTPError{Code: code, EnhancedCode: enhanced, Message: plain(fmt.Sprintf(format, args...))}
}

var (
	errNoKey      = reply(530, smtp.EnhancedCode{5, 7, 0}, "Log in first: any user name, and an API key as the password.")
	errNoTLS      = reply(523, smtp.EnhancedCode{5, 7, 10}, "Begin TLS first. Without it only this machine may log in.")
	errMechanism  = reply(504, smtp.EnhancedCode{5, 7, 4}, "AUTH takes PLAIN and LOGIN.")
	errLogins     = reply(421, smtp.EnhancedCode{4, 7, 0}, "Too many failed logins.")
	errSecondMail = reply(503, smtp.EnhancedCode{5, 5, 1}, "There is a sender already. Send RSET for another message.")
	errRecipients = reply(452, smtp.EnhancedCode{4, 5, 3}, "A message may have at most %d recipients.", maxRecipients)
	errLocalPart  = reply(553, smtp.EnhancedCode{5, 6, 7}, "The address has characters that are not ASCII before the @.")
	errLongLine   = reply(554, smtp.EnhancedCode{5, 6, 0}, "The message has a line of more than %d bytes.", maxLine)
	errCutOff     = reply(421, smtp.EnhancedCode{4, 4, 2}, "The message did not arrive completely. Nothing will be sent.")
	errBusy       = reply(451, smtp.EnhancedCode{4, 3, 0}, "Too many messages at once. Send it again.")
	errStopping   = reply(421, smtp.EnhancedCode{4, 3, 2}, "The server is stopping. Connect again.")
	errInternal   = reply(451, smtp.EnhancedCode{4, 3, 0}, "The message was not taken. Send it again.")
)

// tooLarge returns the answer to a message that is too large.
func (s *Server) tooLarge() *smtp.SMTPError {
	return reply(552, smtp.EnhancedCode{5, 3, 4}, "The message is larger than %d bytes.", s.cfg.Size)
}

// tooMuch reports whether an answer refuses a message for its size or for the number of others.
func tooMuch(answer *smtp.SMTPError) bool {
	return answer.Code == 450 || answer.Code == 552 || answer == errBusy
}

// replyTo returns the answer to a message that was not accepted, and the code of the error for the request log.
func replyTo(err error) (answer *smtp.SMTPError, code string) {
	var refused *mailparse.Error
	var e *service.Error
	switch {
	case errors.As(err, &answer):
		return answer, ""
	case errors.As(err, &refused):
		return reply(refused.Status, refused.Enhanced, "%s", refused.Detail), refused.Code
	case !errors.As(err, &e):
		return errInternal, ""
	}
	text := e.Detail
	if len(e.Fields) > 0 {
		f := e.Fields[0]
		if text = f.Detail; f.Code == "sender_not_allowed" {
			return reply(550, smtp.EnhancedCode{5, 7, 1}, "%s", text), f.Code
		}
	}
	switch e.Kind {
	case problem.Unauthorized:
		return reply(530, smtp.EnhancedCode{5, 7, 0}, "%s", text), e.Code
	case problem.Forbidden:
		return reply(550, smtp.EnhancedCode{5, 7, 1}, "%s", text), e.Code
	case problem.TooMany:
		return reply(450, smtp.EnhancedCode{4, 7, 1}, "%s", text), e.Code
	case problem.TooLarge:
		return reply(552, smtp.EnhancedCode{5, 3, 4}, "%s", text), e.Code
	case problem.Unavailable, problem.Internal, problem.Conflict:
		return reply(451, smtp.EnhancedCode{4, 3, 0}, "%s", text), e.Code
	}
	return reply(554, smtp.EnhancedCode{5, 6, 0}, "%s", text), e.Code
}

// maxText is the length of the longest text of a reply, whose line has 512 bytes.
const maxText = 490

// plain returns a text as a reply may have it: one line of printable ASCII.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.TrimSpace(text))
	return text[:min(len(text), maxText)]
}
