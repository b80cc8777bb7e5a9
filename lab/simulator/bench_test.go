package simulator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// bulk returns a SendGrid call for 1,000 recipients. Their ids begin with the prefix.
func bulk(prefix string) []byte {
	var addrs []string
	for i := range 1000 {
		addrs = append(addrs, fmt.Sprintf("recipient%s%03d@example.com", prefix, i))
	}
	body, err := json.Marshal(simtest.SendGridMail("AAAAAAAAAAAA"+prefix, addrs...))
	if err != nil {
		panic(err)
	}
	return body
}

// bulkForm returns a Mailgun call for 1,000 recipients, as mailgun-go writes it.
func bulkForm() (kind string, body []byte) {
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	w.WriteField("from", "f@"+simtest.Domain)
	vars := map[string]any{}
	for i := range 1000 {
		addr := fmt.Sprintf("recipient%06d@example.com", i)
		w.WriteField("to", addr)
		vars[addr] = map[string]any{simtest.RecipientKey: fmt.Sprintf("AAAAAAAAAAAA%06d", i),
			"name": fmt.Sprint("Name ", i), "code": "123456"}
	}
	w.WriteField("subject", "Hello %recipient.name%")
	w.WriteField("text", strings.Repeat("Dear %recipient.name%, ", 50))
	w.WriteField("v:"+simtest.RecipientKey, "%recipient."+simtest.RecipientKey+"%")
	text, _ := json.Marshal(vars)
	w.WriteField("recipient-variables", string(text))
	w.Close()
	return w.FormDataContentType(), buf.Bytes()
}

func benchmark(b *testing.B, path, kind string, body []byte, a simulator.Account) {
	s := simulator.New(simulator.Options{RecipientKey: simtest.RecipientKey})
	defer s.Close()
	if err := s.AddAccount(a); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", path, bytes.NewReader(body))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Authorization", "Bearer k")
		if a.Kind == simulator.Mailgun {
			r.SetBasicAuth("api", "k")
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 300 {
			b.Fatal(w.Code, w.Body)
		}
	}
}

// BenchmarkSendgrid accepts 1,000 recipients in one call. Every call but the first
// doubles all ids, which is the slower case.
func BenchmarkSendgrid(b *testing.B) {
	benchmark(b, "/x/v3/mail/send", "application/json", bulk(""),
		simulator.Account{Name: "x", Kind: simulator.SendGrid, Key: "k"})
}

func BenchmarkMailgun(b *testing.B) {
	kind, body := bulkForm()
	benchmark(b, "/x/v3/"+simtest.Domain+"/messages", kind, body,
		simulator.Account{Name: "x", Kind: simulator.Mailgun, Key: "k", Domain: simtest.Domain})
}

// BenchmarkSendgridFresh accepts calls with new ids, with and without their events.
// It reports the memory that a copy keeps.
func BenchmarkSendgridFresh(b *testing.B) {
	for _, hook := range []string{"", "http://hooks/x"} {
		b.Run("hook="+fmt.Sprint(hook != ""), func(b *testing.B) {
			s := simulator.New(simulator.Options{RecipientKey: simtest.RecipientKey, Transport: discard{}})
			defer s.Close()
			if err := s.AddAccount(simulator.Account{Name: "x", Kind: simulator.SendGrid, Key: "k",
				WebhookURL: hook}); err != nil {
				b.Fatal(err)
			}
			before := heapBytes()
			n := 0
			for b.Loop() {
				b.StopTimer()
				body := bulk(fmt.Sprintf("%06d", n))
				n++
				b.StartTimer()
				r := httptest.NewRequest("POST", "/x/v3/mail/send", bytes.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Authorization", "Bearer k")
				s.ServeHTTP(httptest.NewRecorder(), r)
			}
			if err := s.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric((heapBytes()-before)/float64(n)/1000, "B/copy")
			if st := s.Stats("x"); st.Distinct != int64(n)*1000 {
				b.Fatalf("%+v", st)
			}
		})
	}
}

func heapBytes() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// discard answers every webhook with 200 and keeps nothing.
type discard struct{}

func (discard) RoundTrip(r *http.Request) (*http.Response, error) {
	io.Copy(io.Discard, r.Body)
	r.Body.Close()
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
}
