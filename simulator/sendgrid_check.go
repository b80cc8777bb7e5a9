package simulator

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

const sgHelp = "http://sendgrid.com/docs/API_Reference/Web_API_v3/Mail/errors.html#"

// check returns what SendGrid finds wrong with the letter, in the words and with
// the field paths of its errors. Wrong addresses are all named.
func (l *sgLetter) check(now time.Time) (list []sgError) {
	report := func(field, help, format string, args ...any) {
		if help != "" {
			help = sgHelp + help
		}
		list = append(list, sgError{fmt.Sprintf(format, args...), field, help})
	}
	dynamic := strings.HasPrefix(string(l.text(l.template)), "d-")
	switch n := len(l.people); {
	case n == 0:
		report("personalizations", "-Personalizations-Errors", "The personalizations field is required and must have at least one personalization.")
	case n > sgMaxRecipients:
		report("personalizations", "-Personalizations-Errors", "The personalizations field may not have more than %d personalizations.", sgMaxRecipients)
	case len(l.addrs) > sgMaxRecipients:
		report("personalizations", "-Personalizations-Errors", "The total number of recipients of a request may not exceed %d. We found %d.", sgMaxRecipients, len(l.addrs))
	default:
		list = l.checkPeople(list, dynamic, now)
	}
	switch from := l.text(l.from); {
	case len(from) == 0:
		report("from.email", "message.from", `The from object must be provided for every email send. It is an object that requires the email parameter, but may also contain a name parameter. e.g. {"email" : "example@example.com"} or {"email" : "example@example.com", "name" : "Example Recipient"}.`)
	case !validAddress(from) || !ascii(from):
		report("from.email", "message.from", "Does not contain a valid address.")
	}
	if l.hasReply && l.hasReplyList {
		report("reply_to", "message.reply_to", "The reply_to and reply_to_list fields may not be used together.")
	}
	if l.subject.empty() && l.template.empty() && !l.allSubjects() {
		report("subject", "message.subject", "The subject is required. You can get around this requirement if you use a template with a subject defined or if every personalization has a subject defined.")
	}
	list = l.checkContent(list)
	if l.pairBytes(l.args) > sgMaxArgs {
		report("custom_args", "message.custom_args", "The total length of custom arguments may not exceed %d bytes.", sgMaxArgs)
	}
	list = l.checkCategories(list)
	if l.sendAt > now.Add(sgMaxAhead).Unix() {
		report("send_at", "message.send_at", "Scheduled sends may not be more than 72 hours in the future.")
	}
	return list
}

func (l *sgLetter) checkPeople(list []sgError, dynamic bool, now time.Time) []sgError {
	for i := range l.people {
		p := &l.people[i]
		addrs := l.addrs[p.addrs[0]:p.addrs[1]]
		hasTo := false
		for _, a := range addrs {
			hasTo = hasTo || a.flags == 0
			if !validAddress(l.text(a.addr)) {
				list = append(list, l.invalid(a))
			}
			// SendGrid splits or rejects names with these; a quoted one is fine.
			if name := l.text(a.name); len(name) > 0 && name[0] != '"' && bytes.ContainsAny(name, ",;") {
				list = append(list, sgError{"The name may not contain a comma or semicolon unless it is quoted.",
					fmt.Sprintf("personalizations.%d.%s.%d.name", a.person, sgRoles[a.flags], a.i), sgHelp + "message.personalizations." + sgRoles[a.flags]})
			}
		}
		field := func(name string) string { return fmt.Sprintf("personalizations.%d%s", i, name) }
		if !hasTo {
			list = append(list, sgError{"The to array is required for all personalization objects, and must have at least one email object with a valid email address.",
				field(".to"), sgHelp + "message.personalizations.to"})
		}
		if addr := l.repeated(addrs); addr != "" {
			list = append(list, sgError{"Each email address in the personalization block should be unique between to, cc, and bcc. We found the first duplicate instance of [" + addr + "] in the " + field("") + " field.",
				field(""), sgHelp + "message.recipient-errors"})
		}
		if l.pairBytes(l.pairs[p.args[0]:p.args[1]]) > sgMaxArgs {
			list = append(list, sgError{fmt.Sprintf("The total length of custom arguments may not exceed %d bytes.", sgMaxArgs),
				field(".custom_args"), sgHelp + "message.personalizations.custom_args"})
		}
		subs := l.pairs[p.subs[0]:p.subs[1]]
		if l.pairBytes(subs) > sgMaxArgs {
			list = append(list, sgError{fmt.Sprintf("The total length of substitutions may not exceed %d bytes.", sgMaxArgs),
				field(".substitutions"), sgHelp + "message.personalizations.substitutions"})
		}
		if dynamic && len(subs) > 0 {
			list = append(list, sgError{"Substitutions may not be used with dynamic templating", field(".substitutions"), sgHelp + "message.personalizations.substitutions"})
		}
		if p.sendAt > now.Add(sgMaxAhead).Unix() {
			list = append(list, sgError{"Scheduled sends may not be more than 72 hours in the future.", field(".send_at"), sgHelp + "message.send_at"})
		}
	}
	return list
}

// repeated returns an address that stands twice in a personalization.
func (l *sgLetter) repeated(addrs []sgAddr) string {
	if len(addrs) < 2 {
		return ""
	}
	seen := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		addr := string(lower(l.text(a.addr)))
		if seen[addr] {
			return addr
		}
		seen[addr] = true
	}
	return ""
}

func (l *sgLetter) allSubjects() bool {
	for i := range l.people {
		if l.people[i].subject.empty() {
			return false
		}
	}
	return true
}

func (l *sgLetter) checkContent(list []sgError) []sgError {
	if len(l.contents) == 0 && l.template.empty() {
		return append(list, sgError{"Unless a valid template_id is provided, the content parameter is required. There must be at least one defined content block. We typically suggest both text/plain and text/html blocks are included, but only one block is required.",
			"content", sgHelp + "message.content"})
	}
	plain, html := -1, -1
	for i, c := range l.contents {
		kind := string(l.text(c.kind))
		if kind == "" {
			list = append(list, sgError{"The content type is required.", fmt.Sprintf("content.%d.type", i), sgHelp + "message.content.type"})
		}
		if c.value.empty() {
			list = append(list, sgError{"The content value must be a string at least one character in length.", fmt.Sprintf("content.%d.value", i), sgHelp + "message.content.value"})
		}
		if kind == "text/plain" && plain < 0 {
			plain = i
		}
		if kind == "text/html" && html < 0 {
			html = i
		}
	}
	if plain > 0 || html > 1 || html == 1 && plain != 0 {
		list = append(list, sgError{"If present, text/plain must be first, followed by text/html, followed by any other content.", "content", sgHelp + "message.content"})
	}
	return list
}

func (l *sgLetter) checkCategories(list []sgError) []sgError {
	if len(l.categories) > sgMaxCategories {
		return append(list, sgError{fmt.Sprintf("There may not be more than %d categories.", sgMaxCategories), "categories", sgHelp + "message.categories"})
	}
	seen := map[string]bool{}
	for i, v := range l.categories {
		text := string(l.text(v))
		if len([]rune(text)) > sgMaxCategory {
			list = append(list, sgError{fmt.Sprintf("A category may not exceed %d characters.", sgMaxCategory), fmt.Sprintf("categories.%d", i), sgHelp + "message.categories"})
		}
		if seen[text] {
			list = append(list, sgError{"The categories must be unique.", "categories", sgHelp + "message.categories"})
		}
		seen[text] = true
	}
	return list
}

// pairBytes returns the length of keys and values. It decodes escapes only if
// that can make a difference.
func (l *sgLetter) pairBytes(list []sgPair) (n int) {
	for _, p := range list {
		n += p.key.size() + p.value.size()
	}
	if n <= sgMaxArgs {
		return n
	}
	n = 0
	for _, p := range list {
		n += len(l.text(p.key)) + len(l.text(p.value))
	}
	return n
}

// replaceAll replaces the pairs (old, new) of subs in text one after the other,
// as SendGrid does.
func replaceAll(text string, subs []string) string {
	for i := 0; i+1 < len(subs); i += 2 {
		text = strings.ReplaceAll(text, subs[i], subs[i+1])
	}
	return text
}
