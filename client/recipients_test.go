package client_test

import (
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestBatchFromFile: the fields of a batch and the file become a form whose columns come before the file.
func TestBatchFromFile(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form, err := r.MultipartReader()
		for err == nil {
			var part *multipart.Part
			if part, err = form.NextPart(); err == nil {
				value, _ := io.ReadAll(part)
				if id := part.Header.Get("Content-ID"); id != "" {
					value = append(value, part.Header.Get("Content-Type")+id...)
				}
				got = append(got, part.FormName()+" "+part.FileName()+" "+string(value))
			}
		}
		got = append(got, r.URL.RawQuery)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"id":"x", "rejected": {"count": 1, "first": [{"index": 1, "code": "invalid_address"}]}}`))
	}))
	defer server.Close()
	c := client.New(server.URL, "key")
	f := client.File{Name: "people.csv", Columns: map[string]string{"Mail": "email"}, Content: strings.NewReader("Mail\n")}
	b := client.NewBatch{From: "a@b.de", Subject: "s", Text: "t", Tags: []string{"x", "y"}, TrackOpens: true,
		Headers: map[string]string{"X-A": "b"}, Metadata: map[string]string{"k": "v"},
		Attachments: []client.Attachment{
			{Filename: "ä.png", ContentType: "image/png", ContentID: "logo", Content: []byte("PNG")},
		}}
	a, err := c.CreateBatchFromFile(t.Context(), b, f, client.Permissive())
	require.NoError(t, err)
	require.Equal(t, "to people.csv Mail\n", got[len(got)-2])
	require.Equal(t, "mode=permissive", got[len(got)-1])
	require.ElementsMatch(t, []string{
		`headers  {"X-A":"b"}`, `metadata  {"k":"v"}`, "attachments ä.png PNGimage/png<logo>",
		"from  a@b.de", "subject  s", "text  t", "tags  x,y", "track_opens  true", `columns  {"Mail":"email"}`,
	}, got[:len(got)-2])
	require.Equal(
		t,
		&client.Rejected{Count: 1, First: []client.Rejection{{Index: 1, Code: "invalid_address"}}},
		a.Rejected,
	)
	_, err = c.CreateBatchFromFile(t.Context(), client.NewBatch{To: []client.Recipient{{Email: "a@b.de"}}}, f)
	require.ErrorContains(t, err, "to")
}
