//go:build full

package api

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/api/postmark"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/api/sendgrid"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite"
)

// heapPeak measures by how much the live objects grow. All tests share the heap, so those that use it do not run in
// parallel.
type heapPeak struct {
	mu           sync.Mutex
	before, most uint64
}

// onDisk gives a fixture a store whose content is not on the heap.
func onDisk(t *testing.T) func(*setup) {
	t.Helper()
	s, err := sqlite.Open(t.TempDir(), sqlite.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return func(st *setup) { st.store = s }
}

func newHeapPeak() *heapPeak {
	runtime.GC() // one collection keeps what lies in pools
	h := &heapPeak{}
	h.look()
	h.before = h.most
	return h
}

// look measures the heap. It counts what the collection marked: what other goroutines allocate afterwards, until the
// heap is swept, depends on the machine.
func (h *heapPeak) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	h.most = max(h.most, live[0].Value.Uint64())
}

// lookAt measures the heap at each 20th chunk that a store gets.
func (h *heapPeak) lookAt(s *spyStore) {
	if s.count("PutChunk")%20 == 0 {
		h.look()
	}
}

// requireBelow requires that the heap grew by less than a number of bytes.
func (h *heapPeak) requireBelow(t *testing.T, bytes uint64) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	t.Logf("the heap grew by at most %d kB", (h.most-h.before)>>10)
	require.Less(t, h.most-h.before, bytes, "growth of the heap in bytes")
}

// TestMemoryOfManyMessages: 100,000 records with 60 MB need little memory besides a line of the answer for each.
func TestMemoryOfManyMessages(t *testing.T) {
	f := newFixture(t, onDisk(t))
	f.template(letter)
	const n = 100_000
	heap, size := newHeapPeak(), 0
	pr, pw := io.Pipe()
	go func() {
		w := bufio.NewWriter(pw)
		for i := range n {
			k, _ := fmt.Fprintf(w, `{"id": "m-%d", "template": "welcome", "to": "u%d@example.com", "name": "U",`+
				` "vars": {"code": "%0500d"}}`+"\n", i, i, i)
			if size += k; i%10_000 == 0 {
				heap.look()
			}
		}
		_ = w.Flush()
		_ = pw.Close()
	}()
	f.store.before("PutChunk", func() { heap.lookAt(f.store) }) // and while the store writes
	r := f.do(http.MethodPut, "/v1/messages", ndjson, pr)
	heap.look()
	require.Greater(t, size, 58_000_000)
	heap.requireBelow(t, 35<<20)
	rs := putResults(t, r)
	require.Len(t, rs, n)
	require.Equal(t, "m-99999 accepted", resultWords(rs[n-1:])[0])
	require.Greater(t, f.store.count("PutChunk"), 40, "it was measured while the store wrote")
}

// TestPermissiveMemory: a table in which every tenth row is bad needs flat memory, and all bad rows are listed.
func TestPermissiveMemory(t *testing.T) {
	f := newFixture(t, onDisk(t))
	const n = 200_000
	heap := newHeapPeak()
	pr, pw := io.Pipe()
	w := multipart.NewWriter(pw)
	go func() {
		for _, field := range [][2]string{{"from", "shop@example.com"}, {"subject", "Hello {{first}}"}, {"text", "t"}} {
			_ = w.WriteField(field[0], field[1])
		}
		part, _ := w.CreateFormFile("to", "people.csv")
		_, _ = io.WriteString(part, "email,first\n")
		var rows strings.Builder
		for i := range n {
			switch i % 20 {
			case 3:
				fmt.Fprintf(&rows, "invalid%d,x\n", i)
			case 13:
				fmt.Fprintf(&rows, "user%d@example.com\n", i)
			default:
				fmt.Fprintf(&rows, "user%d@example.com,P%d\n", i, i)
			}
			if i%20_000 == 0 {
				_, _ = io.WriteString(part, rows.String())
				rows.Reset()
				heap.lookAt(f.store)
			}
		}
		_, _ = io.WriteString(part, rows.String())
		_ = w.Close()
		_ = pw.Close()
	}()
	f.store.before("PutPiece", func() { heap.lookAt(f.store) })
	f.store.before("PutChunk", func() { heap.lookAt(f.store) })
	r := f.do(http.MethodPost, "/v1/batches?mode=permissive", w.FormDataContentType(), pr)
	a, _, _ := f.accepted(r)
	require.Equal(t, n*9/10, a.Recipients)
	require.Len(t, rejectedOf(t, r).First, 100)
	require.Equal(t, n/10, rejectedOf(t, r).Count)
	heap.requireBelow(t, 12<<20)
	rows, err := csv.NewReader(bytes.NewReader(f.get(batchPath(a.ID) + "/rejected.csv").Body)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, n/10+1)
	for i, row := range rows[1:] {
		require.Equal(t, fmt.Sprint(10*i+3), row[0])
		require.Equal(t, fmt.Sprint(10*i+5), row[1])
	}
}

// TestMemoryOfLargeRequest: a request of 12 MB with 100,000 recipients before the content needs
// little memory.
func TestMemoryOfLargeRequest(t *testing.T) {
	f := newFixture(t, onDisk(t))
	const n = 100_000
	heap, size := newHeapPeak(), 0
	pr, pw := io.Pipe()
	go func() {
		w := bufio.NewWriter(pw)
		size, _ = w.WriteString(`{"to": [`)
		for i := range n {
			k, _ := fmt.Fprintf(w,
				`{"email": "recipient-%d@customers.example.com", "name": "Recipient %d", "vars": {"code": "%060d"}},`, i, i, i)
			if size += k; i%10_000 == 0 {
				heap.look()
			}
		}
		_, _ = w.WriteString(`"last@example.com"], "html": "<p>{{name}}</p>", "from": "a@b.de", "subject": "Hello"}`)
		_ = w.Flush()
		_ = pw.Close()
	}()
	// Measure while the store writes, too.
	f.store.before("PutChunk", func() { heap.lookAt(f.store) })
	r := f.do(http.MethodPost, "/v1/batches", "application/json", pr)
	a, b, rs := f.accepted(r)
	require.Equal(t, n+1, a.Recipients)
	require.Equal(t, 101, b.Chunks)
	require.Equal(
		t,
		models.Recipient{
			Email: "recipient-99999@customers.example.com",
			Name:  "Recipient 99999",
			Vars:  map[string]string{"code": fmt.Sprintf("%060d", 99_999)},
		},
		rs[n-1],
	)
	require.Greater(t, size, 12_000_000)
	heap.requireBelow(t, 12<<20)
}

// TestMemoryOfLargeAttachments: a request with 24 MB of attachments needs little memory, while it is read and while it
// is stored, by all ways in.
func TestMemoryOfLargeAttachments(t *testing.T) {
	piece := base64.StdEncoding.EncodeToString(randomBytes(300_000))
	numbers := strings.Repeat("7,", 300_000)
	const form = "multipart/form-data; boundary=b"
	for name, way := range map[string]struct{ path, kind, begin, between, end, piece string }{
		"native": {"/v1/batches", "application/json", `{"from": "a@b.de", "to": ["c@d.de"], "subject": "s", "text": "t",
			"attachments": [{"filename": "a", "content": "`, `"}, {"filename": "b", "content": "`, `"}]}`, piece},
		"resend": {"/emails", "application/json", `{"from": "a@b.de", "to": ["c@d.de"], "subject": "s", "text": "t",
			"attachments": [{"filename": "a", "content": "`, `"}, {"filename": "b", "content": "`, `"}]}`, piece},
		"resend-buffer": {"/emails", "application/json", `{"from": "a@b.de", "to": ["c@d.de"], "subject": "s", "text": "t",
			"attachments": [{"filename": "a", "content": {"type": "Buffer", "data": [`, `7]}}, {"filename": "b", "content": [`,
			`7]}]}`, numbers},
		"postmark": {"/email", "application/json", `{"From": "a@b.de", "To": "c@d.de", "Subject": "s", "TextBody": "t",
			"Attachments": [{"Name": "a", "Content": "`, `"}, {"Name": "b", "Content": "`, `"}]}`, piece},
		"sendgrid": {"/v3/mail/send", "application/json", `{"from": {"email": "a@b.de"}, "subject": "s",
			"content": [{"type": "text/plain", "value": "t"}], "personalizations": [{"to": [{"email": "c@d.de"}]}],
			"attachments": [{"filename": "a", "content": "`, `"}, {"filename": "b", "content": "`, `"}]}`, piece},
		"mailgun": {"/v3/" + domain + "/messages", form, formParts("from", "a@b.de", "to", "c@d.de", "subject", "s", "text", "t") +
			filePart("a"), "\r\n" + filePart("b"), "\r\n--b--\r\n", string(randomBytes(300_000))},
		"mailgun-mime": {"/v3/" + domain + "/messages.mime", form, formParts("to", "c@d.de") +
			"--b\r\nContent-Disposition: form-data; name=message; filename=m\r\n\r\nFrom: a@b.de\r\nTo: c@d.de\r\nSubject: s\r\n" +
			"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=m\r\n" + mimePart("a"), mimePart("b"),
			"\r\n--m--\r\n\r\n--b--\r\n", piece + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, onDisk(t), func(s *setup) {
				s.cfg.Dialects = []*dialect.Dialect{mailgun.New(), sendgrid.New(), resend.New(), postmark.New()}
			})
			f.deps.Providers[0].Carries = models.Capabilities{Attachments: true, Variables: true, Headers: true, Copies: true}
			f.serve(f.server.cfg)
			heap := newHeapPeak()
			pr, pw := io.Pipe()
			go func() {
				_, _ = io.WriteString(pw, way.begin)
				for i := range 80 {
					_, _ = io.WriteString(pw, way.piece)
					if i == 40 {
						_, _ = io.WriteString(pw, way.between)
					}
					if i%10 == 0 {
						heap.look()
					}
				}
				_, _ = io.WriteString(pw, way.end)
				_ = pw.Close()
			}()
			f.store.failing("PutPiece", func(n int) error {
				if n%20 == 0 {
					heap.look()
				}
				return nil
			})
			r := f.do(http.MethodPost, way.path, way.kind, pr)
			require.Less(t, r.Status, 300, string(r.Body))
			bs, _ := f.batches()
			require.InDelta(t, 24_000_000, bs[0].Content.AttachmentSize(), 2)
			require.Len(t, bs[0].Content.Attachments, 2)
			require.Greater(t, f.store.count("PutPiece"), 90)
			heap.requireBelow(t, 6<<20)
		})
	}
}

// formParts returns fields of a form with the boundary b.
func formParts(fields ...string) string {
	var s strings.Builder
	for i := 0; i < len(fields); i += 2 {
		fmt.Fprintf(&s, "--b\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n", fields[i], fields[i+1])
	}
	return s.String()
}

// filePart returns the header of a file of such a form.
func filePart(name string) string {
	return "--b\r\nContent-Disposition: form-data; name=attachment; filename=" + name + "\r\n\r\n"
}

// mimePart returns the header of an attachment of a message with the boundary m.
func mimePart(name string) string {
	return "\r\n--m\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename=" + name +
		"\r\nContent-Transfer-Encoding: base64\r\n\r\n"
}
