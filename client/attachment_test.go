package client_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestAttach: a file becomes an attachment with the name and the type of the file, and its bytes travel as base64.
func TestAttach(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "Größe.pdf")
	require.NoError(t, os.WriteFile(path, []byte("a file"), 0o600))
	a, err := client.AttachFile(path)
	require.NoError(t, err)
	require.Equal(
		t,
		client.Attachment{Filename: "Größe.pdf", ContentType: "application/pdf", Content: []byte("a file")},
		a,
	)
	b, err := client.Attach("page.html", strings.NewReader("x"))
	require.NoError(t, err)
	require.Equal(t, "text/html", b.ContentType, "without parameters")
	b.ContentID = "logo"
	raw, err := json.Marshal(b)
	require.NoError(t, err)
	require.JSONEq(
		t,
		`{"filename": "page.html", "content_type": "text/html", "content_id": "logo", "content": "eA=="}`,
		string(raw),
	)
	_, err = client.AttachFile(path + ".missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
