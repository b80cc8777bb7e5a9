//go:build browser

package dashboard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestBrowserDrafts: what is typed is saved while it is typed, and is there in another session.
// Two pages do not overwrite each other.
func TestBrowserDrafts(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := openTab(t, f.url)
	link, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.NoError(t, err)
	b.open(link)
	b.sees("Overview")
	b.look("drafts-empty", "/drafts", 1440, "light")
	b.open("/compose")
	b.typeInto("subject", "Spring offer")
	b.sees("Draft saved at")
	b.typeInto("to", "ann@example.com")
	b.until(`document.getElementById("draft_version").value === "2"`)
	at := eval[string](b, "location.search")
	require.Contains(t, at, "?draft=")

	other := f.byLink(login.LocalUser()) // the first session may end now
	text := other.get("/compose" + at).text
	require.Contains(t, text, `value="Spring offer"`)
	require.Contains(t, text, "ann@example.com")
	form := sentBy(t, oneMessage, other.get("/compose"+at))
	form.Set("draft", at[len("?draft="):])
	form.Set("draft_version", "2")
	form.Set("editor", "other")
	require.Contains(t, other.post("/drafts", form).text, "The draft is saved")

	b.typeInto("text", "Hello")
	b.sees("The draft is not saved. This draft was changed on another page.")
	b.complaints() // the browser reports the refusal
	b.press("Save as a new draft")
	b.sees("Draft saved at")
	b.lookAround("drafts", "/drafts")
	b.press("Delete")
	b.press("Delete permanently")
	b.until(`document.querySelectorAll("main .row").length === 1`)
	b.press("New message")
	b.until(`document.getElementById("subject").value === ""`)
	b.press("Drafts")
	b.until(`document.querySelectorAll("main .row").length === 1`)
}

// TestBrowserComposeFiles: chosen files stay chosen while the page asks about many recipients.
func TestBrowserComposeFiles(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := openTab(t, f.url)
	link, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.NoError(t, err)
	b.open(link)
	b.sees("Overview")
	file := filepath.Join(t.TempDir(), "invoice.pdf")
	require.NoError(t, os.WriteFile(file, make([]byte, models.PieceSize+5), 0o600))
	b.open("/compose")
	b.fill("from", "shop@example.com")
	b.typeInto("subject", "Invoice")
	eval[bool](b, `document.getElementById("subject").dispatchEvent(new Event("change", { bubbles: true }))`)
	b.until(`document.getElementById("summary").innerText.includes("Invoice")`)
	b.do(chromedp.SetUploadFiles(chromedp.ID("attachments"), []string{file}))
	list := ""
	for i := range 11 {
		list += string(rune('a'+i)) + "@example.com, "
	}
	b.fill("to", list)
	b.press("Send to all")
	b.sees("Fix the highlighted fields")
	b.complaints() // the browser reports the refusal
	require.Equal(t, 1, eval[int](b, `document.getElementById("attachments").files.length`))
	b.fill("text", "Here it is")
	b.press("Send to all")
	b.sees("Send to 11 recipients?")
	b.lookAround("compose-files", "")
	b.press("Send to 11")
	b.at("/batches/")
	there := f.composed()
	require.Len(t, there, 1)
	v, err := f.service.Mail.Batch(t.Context(), service.Caller{User: "local"}, there[0].ID.String())
	require.NoError(t, err)
	require.Len(t, v.Attached, 1)
	require.EqualValues(t, models.PieceSize+5, v.Attached[0].Size)
	require.Contains(t, f.byLink(login.LocalUser()).get("/drafts").text, "No drafts")
}
