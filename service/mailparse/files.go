package mailparse

import (
	"cmp"
	"fmt"
	"html"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Files gives the files of one message names, types and content IDs that every provider takes. The zero value is ready.
type Files struct {
	count int
	ids   map[string]string // content IDs that were sent, and those that replace them
	used  map[string]bool   // content IDs of the attachments
}

var (
	validType = regexp.MustCompile(`^[a-z0-9!#$&^_.+-]{1,63}/[a-z0-9!#$&^_.+-]{1,63}$`)
	validID   = regexp.MustCompile(`^[A-Za-z0-9_.@+-]{1,128}$`)
	method    = regexp.MustCompile(`^[A-Za-z-]{1,32}$`)
	extension = regexp.MustCompile(`^[a-z0-9]{2,5}$`)
)

// Attachment returns the next file of a message, from what was sent. An empty content ID means that it is not inline.
func (f *Files) Attachment(name, contentType, contentID string) Attachment {
	kind, params := parameters(contentType)
	if !validType.MatchString(kind) || strings.HasPrefix(kind, "multipart/") {
		kind = "application/octet-stream"
	}
	a := Attachment{Type: withMethod(kind, params), ContentID: f.contentID(ContentID(contentID))}
	f.count++
	a.Filename = fileName(Line(name), kind, f.count)
	return a
}

// Line makes one line of a text, whose bytes beyond ASCII are UTF-8 or windows-1252.
func Line(text string) string { return clean(raw8(text)) }

// ContentID returns a content ID as HTML refers to it, from the value of its header field.
func ContentID(field string) string { return strings.Trim(Line(field), "<> ") }

// withMethod returns a type with the method of an invitation.
func withMethod(kind string, params map[string]string) string {
	if m := params["method"]; kind == "text/calendar" && method.MatchString(m) {
		kind += "; method=" + strings.ToUpper(m)
	}
	return kind
}

// fileName returns a name for the attachment with a number, from that in the message.
func fileName(name, kind string, number int) string {
	const most = 255
	name = strings.NewReplacer("/", "-", `\`, "-", ";", "-").Replace(name)
	if strings.Trim(name, ".- ") == "" {
		kind, _, _ = strings.Cut(kind, ";")
		_, end, _ := strings.Cut(kind, "/")
		end = cmp.Or(map[string]string{"calendar": "ics", "jpeg": "jpg", "plain": "txt", "rfc822": "eml"}[end], end)
		if !extension.MatchString(end) {
			end = "bin"
		}
		return fmt.Sprintf("attachment-%d.%s", number, end)
	}
	if end := path.Ext(name); len(name) > most {
		end = end[:min(len(end), 16)]
		name = strings.ToValidUTF8(name[:most-len(end)], "") + strings.ToValidUTF8(end, "")
	}
	return name
}

// contentID returns the ID of an inline attachment: that of the message, or another if that is unusable or repeated.
func (f *Files) contentID(sent string) string {
	if sent == "" {
		return ""
	}
	id := sent
	for n := len(f.used) + 1; f.used[id] || !validID.MatchString(id); n++ {
		id = fmt.Sprintf("inline-%d", n)
	}
	if f.used == nil {
		f.used, f.ids = map[string]bool{}, map[string]string{}
	}
	f.used[id] = true
	if _, repeated := f.ids[sent]; !repeated {
		f.ids[sent] = id
	}
	return id
}

// MaxContentID is the length in bytes of the longest content ID that Rewrite replaces.
const MaxContentID = 998

// references returns how HTML may refer to a content ID.
func references(id string) []string {
	return []string{"cid:" + id, "cid:" + html.EscapeString(id), "cid:" + url.PathEscape(id)}
}

// Refers reports whether a text may refer to a content ID, or is the value of a reference.
func Refers(text, id string) bool {
	return text == id || slices.ContainsFunc(references(id), func(r string) bool { return strings.Contains(text, r) })
}

// Rewrite returns HTML with the content IDs of the attachments in place of those that were sent.
func (f *Files) Rewrite(text string) string {
	var pairs []string
	sent := slices.SortedFunc(maps.Keys(f.ids), func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	for _, id := range sent { // the longest first: one may begin another
		if f.ids[id] != id && len(id) <= MaxContentID {
			for _, form := range references(id) {
				pairs = append(pairs, form, "cid:"+f.ids[id])
			}
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
