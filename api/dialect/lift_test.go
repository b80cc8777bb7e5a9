package dialect

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/intake"
)

// lifted reads JSON as ReadJSON does, with contents of more than most bytes in files.
func lifted(t *testing.T, text string, most int) (string, *Files, *intake.Intake) {
	t.Helper()
	in := intake.New(t.Context(), &intake.Config{SpoolDir: t.TempDir()})
	t.Cleanup(in.Close)
	l := lifter{body: bufio.NewReaderSize(strings.NewReader(text), 16), large: most, in: in}
	if err := l.run(); !errors.Is(err, errNotTaken) { // else the request is refused
		require.NoError(t, err)
	} else {
		l.out.Reset()
		l.out.WriteString(text)
	}
	if l.spool != nil {
		t.Cleanup(l.spool.Close)
	}
	in.Kept = l.files
	return l.out.String(), new(Files), in
}

// contents returns the contents of all attachments of a message as text, and removes them.
func contents(t *testing.T, message Object, kept map[string]*intake.Part) (out []string) {
	t.Helper()
	for _, words := range [][2]string{{"attachments", "content"}, {"Attachments", "Content"}} {
		list, _ := message.Objects(words[0])
		for _, a := range list {
			if file := kept[a.kept(words[1])]; file != nil {
				r, err := file.Reader()
				require.NoError(t, err)
				raw, err := io.ReadAll(r)
				require.NoError(t, err)
				out = append(out, fmt.Sprintf("%q", raw))
			} else if raw, ok := a.Bytes(words[1]); ok && len(raw) > 0 {
				out = append(out, fmt.Sprintf("%q", raw))
			} else {
				out = append(out, "none")
			}
			delete(a, words[1])
		}
		if raw, err := json.Marshal(list); err == nil && list != nil {
			message[words[0]] = raw
		}
	}
	return out
}

// messages of requests, whose contents are read alike whether they are in memory or in files.
var messages = []string{
	`{"attachments": [{"content": "` + base64.StdEncoding.EncodeToString([]byte("hello, world")) + `", "filename": "a"}]}`,
	`[{"Attachments": [{"Content": "aGVs\r\nbG8s\u0049Hdv\u0063mxk=="}, {"Content": "aGVsbG8s-_8\/"}]}]`,
	`{"attachments": [{"content": [104, 105, 0, 255]}, {"content": {"type": "Buffer", "data": [1,2,3,4,5]}}]}`,
	`{"attachments": [{"content": [104, 256]}, {"content": [1,,2]}, {"content": "aGVs!G8sIHdv"}, {"content": "\u00e9aGVsbG8"}]}`,
	`{"content": [{"type": "text/plain", "value": "a long text"}], "x": {"attachments": "y", "content": "a long text"}}`,
	`{"attachments": [{"name": "a \\", "content": "aGVsbG8sIHdvcmxk\\"}, {"content": "", "type": "\\\""}]}`,
	`{"attachments": [{"content": "aGVsbG8sIHdvcmxk", "content": "aGVsbG8sIGhlbGxv"}], "data": [1, 2, 3, 4, 5]}`,
	`{"attachments": {"content": "aGVsbG8sIHdvcmxk"}, "content": ["aGVsbG8sIHdvcmxk"]}`,
	`{"attachments": [[{"content": "aGVsbG8sIHdvcmxk"}]]}`,
	`{"attachments": [{"content": [11, 12, 13.5]}, {"content": [11, 12, -1]}, {"content": {"data": "aGVsbG8sIHdv"}}]}`,
	`{"attachments": [{"content": "file:aGk="}, {"content": {"data": "\u0066ile:aGk="}}, {"content": []}]}`,
}

// TestContentsInFiles: a content is the same in a file, wherever the parts end in which it is read.
func TestContentsInFiles(t *testing.T) {
	t.Parallel()
	for _, text := range messages {
		for pad := range 17 {
			requireAlike(t, strings.Repeat(" ", pad)+text)
		}
	}
	for i, want := range [][]string{{`"hello, world"`}, {`"hello, world"`, `"hello,\xfb\xff?"`},
		{`"hi\x00\xff"`, `"\x01\x02\x03\x04\x05"`}} {
		out, _, in := lifted(t, messages[i], 4)
		var list []Object
		require.NoError(t, json.Unmarshal([]byte("["+strings.Trim(out, "[]")+"]"), &list))
		require.Equal(t, want, contents(t, list[0], in.Kept))
	}
	out, _, in := lifted(t, messages[0], 4)
	require.Contains(t, out, `"file:`)
	require.Len(t, in.Kept, 1)
	out, _, in = lifted(t, messages[4], 4)
	require.Equal(t, messages[4], out, "only attachments are kept in files")
	require.Empty(t, in.Kept)
	out, _, in = lifted(t, `{"Messages": [{"Attachments": [{"Content": "aGVsbG8sIHdvcmxk"}]}]}`, 4)
	require.Contains(t, out, `"file:`)
	require.Len(t, in.Kept, 1)
}

// TestOtherContents: what is called like the content of an attachment stays as it is elsewhere.
func TestOtherContents(t *testing.T) {
	t.Parallel()
	const data = `{"attachments": [{"content": "aGVsbG8sIHdvcmxk"}], "Attachments": [{"Content": "aGVsbG8sIHdvcmxk"}]}`
	for _, text := range []string{
		`{"personalizations": [{"dynamic_template_data": ` + data + `}]}`,
		`{"TemplateModel": ` + data + `}`,
		`[{"template": {"variables": ` + data + `}}]`,
		`{"Messages": [{"TemplateModel": ` + data + `}]}`,
	} {
		out, _, in := lifted(t, text, 4)
		require.Equal(t, text, out)
		require.Empty(t, in.Kept)
	}
}

// TestForeignNames: a client cannot name a file that it sent elsewhere in the request, so that a small request is never
// many large mails.
func TestForeignNames(t *testing.T) {
	t.Parallel()
	_, _, in := lifted(t, messages[0], 4)
	for name := range in.Kept {
		for _, text := range []string{
			`{"Messages": [{"Attachments": [{"Content": "aGVsbG8sIHdvcmxk"}, {"Content": "` + name + `"}]}]}`,
			`{"meſſages": [{"Attachments": [{"Content": "aGVsbG8sIHdvcmxk"}, {"Content": "\u0066` + name[1:] + `"}]}]}`,
			`[{"attachments": [{"content": "aGVsbG8sIHdvcmxk"}, {"content": {"data": "` + name + `"}}]}]`,
		} {
			out, _, in := lifted(t, text, 200)
			require.Empty(t, in.Kept)
			require.NotContains(t, out, name[1:], text)
			require.True(t, json.Valid([]byte(out)))
		}
	}
}

// TestNoJSON: large contents that are no JSON are refused, as small ones are, and so are values that are too
// deep, and lists of other values than bytes, whose end may be elsewhere.
func TestNoJSON(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"\"aGVsbG8s\nIHdvcmxk\"", "[1, 2, 3 4]", "[01, 2, 3, 4]", "[1, 2, 3, 00]"} {
		text := `{"attachments": [{"content": ` + content + `}]}`
		require.False(t, json.Valid([]byte(text)))
		_, _, in := lifted(t, text, 4)
		require.Empty(t, in.Kept, content)
	}
	for _, text := range []string{
		strings.Repeat("[", 1<<20),
		`[{"attachments": [{"content": [[1], [2]]}]}, {"attachments": [{"content": "file:"}]}]`,
		`[{"attachments": [{"content": ["]"]}]}]`,
		`[{"attachments": [{"content": [{}]}]}]`,
	} {
		l := lifter{body: bufio.NewReader(strings.NewReader(text)), large: large}
		require.ErrorIs(t, l.run(), errNotTaken)
		require.Less(t, len(l.path), 11_000)
	}
}

// requireAlike requires that JSON means the same with its contents in files.
func requireAlike(t *testing.T, text string) {
	t.Helper()
	out, _, in := lifted(t, text, 4)
	var want, got json.RawMessage
	if json.Unmarshal([]byte(text), &want) != nil {
		return // what is not JSON is refused later, or the content is
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got), out)
	of := func(raw json.RawMessage) (list []Object) {
		var one Object
		if json.Unmarshal(raw, &list) != nil && json.Unmarshal(raw, &one) == nil {
			list = []Object{one}
		}
		return list
	}
	wants, gots := of(want), of(got)
	require.Len(t, gots, len(wants), out)
	for i := range wants {
		if wants[i] != nil {
			require.Equal(t, contents(t, wants[i], nil), contents(t, gots[i], in.Kept), "%s\n%s", text, out)
		}
		a, _ := json.Marshal(wants[i])
		b, _ := json.Marshal(gots[i])
		require.JSONEq(t, string(a), string(b), "%s\n%s", text, out)
	}
}

// FuzzContentsInFiles is TestContentsInFiles for any request.
func FuzzContentsInFiles(f *testing.F) {
	for _, text := range messages {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { requireAlike(t, text) })
}

// TestLargeContents: a message may have contents in files and in memory, and its files are the same.
func TestLargeContents(t *testing.T) {
	t.Parallel()
	big := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("0123456789"), 20_000))
	body := `{"attachments": [{"content": "aGk=", "filename": "a"}, {"content": "` + big + `"}]}`
	sums := map[string]bool{}
	for _, most := range []int{large, 1 << 20} {
		out, files, in := lifted(t, body, most)
		require.Equal(t, most == large, len(out) < 200, "the large content is not in memory")
		var message Object
		require.NoError(t, json.Unmarshal([]byte(out), &message))
		list, ok := message.Objects("attachments")
		require.True(t, ok)
		into := intake.New(t.Context(), &intake.Config{SpoolDir: t.TempDir()})
		t.Cleanup(into.Close)
		into.Kept = in.Kept
		for _, a := range list {
			ok, err := files.attachJSON(into, a, "content", a.Text("filename"), "", "")
			require.NoError(t, err)
			require.True(t, ok)
		}
		sums[files.Sum()] = true
	}
	require.Len(t, sums, 1)
}

// TestOneFile: the large contents of a request are in one file, which is closed with the request.
func TestOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list := make([]string, 100)
	for i := range list {
		list[i] = `{"content": "` + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 100_000)) + `"}`
	}
	first := intake.New(t.Context(), &intake.Config{SpoolDir: dir})
	t.Cleanup(first.Close)
	r := &Request{first: first, Request: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/",
		strings.NewReader(`{"attachments": [`+strings.Join(list, ",")+`]}`))}
	var message Object
	require.NoError(t, ReadJSON(r, 20<<20, &message))
	open := func() (n int) {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("only Linux lists the open files")
		}
		for _, f := range files {
			if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, dir) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, open())
	for i, content := range contents(t, message, r.large) {
		require.Equal(t, fmt.Sprintf("%q", bytes.Repeat([]byte{byte(i)}, 100_000)), content)
	}
	r.Close()
	require.Zero(t, open())
}

// TestTextOf: a text is read as encoding/json reads it, also if it is not UTF-8.
func TestTextOf(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`"a"`: "a", `""`: "",
		`"\"a\u0062"`: `"ab`, "\"\xff\"": "\ufffd", `null`: "", `7`: "7", `{"a":"b"}`: `{"a":"b"}`, `"`: `"`,
	} {
		require.Equal(t, want, TextOf(json.RawMessage(raw)))
	}
}
