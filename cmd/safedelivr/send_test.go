package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestSendWholeMail: send takes all that a message may be. Mistakes name the flag.
func TestSendWholeMail(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	sim, api := simulatedProviders(t, simulator.Options{KeepContent: true})
	key, _ := typed(t, 0, "secret-sg\n", "init", "--provider", "sendgrid", "--base-url", api+"/sg", "--folder", folder)
	file := filepath.Join(folder, "safedelivr.yaml")
	base := serveFor(t, file)
	mails := client.New(base, key[:len(key)-1])
	in := client.NewTemplate{Name: "hello"}
	in.Sender, in.Subject, in.HTML = "Shop <shop@example.com>", "Hello {{first}}", `<img src="cid:logo.png">{{first}}`
	in.Publish = true
	_, err := mails.CreateTemplate(t.Context(), in)
	require.NoError(t, err)
	logo := filepath.Join(folder, "logo.png")
	require.NoError(t, os.WriteFile(logo, []byte("an image"), 0o600))

	send := []string{"send", "-c", file, "--template", "hello", "--to", "ann@example.com", "--var", "first=Ann"}
	out, _ := typed(t, 0, "", append(send, "--inline", logo, "--tag", "spring", "--tag", "shop", "--category", "news",
		"--metadata", "order=7", "--header", "X-Campaign=spring", "--reply-to", "help@example.com", "--track-opens",
		"--unsubscribe=false", "--lane", "bulk", "--language", "de",
		"--expires-at", time.Now().Add(time.Hour).Format(time.RFC3339))...)
	b, err := mails.Batch(t.Context(), strings.Fields(out)[1])
	require.NoError(t, err)
	require.Equal(t, client.Bulk, b.Lane)
	copies := sim.Copies("ann@example.com")
	require.Len(t, copies, 1)
	got := copies[0]
	require.Equal(t, "Hello Ann", got.Subject)
	require.Equal(t, []string{"spring", "shop", "news"}, []string{b.Tags[0], b.Tags[1], b.Category})
	require.Equal(t, map[string]string{"order": "7"}, b.Metadata)
	require.Equal(t, "help@example.com", b.ReplyTo[0].Email)
	require.Equal(t, "spring", got.Headers["X-Campaign"])
	require.NotContains(t, got.Headers, "List-Unsubscribe")
	require.Equal(t, "logo.png", got.Attachments[0].ContentID)
	for flag, value := range map[string]string{"--var": "first", "--header": "X", "--metadata": "=1"} {
		_, errs := typed(t, 2, "", append(send, flag, value)...)
		require.Contains(t, errs, flag+" \""+value+"\": give NAME=VALUE")
	}
	_, errs := typed(t, 2, "", append(send, "--tag", "a\nb", "--header", "Subject=x", "--lane", "slow")...)
	for _, want := range []string{"--tag: A tag", "--header: Subject has a field", "--lane: "} {
		require.Contains(t, errs, want)
	}
}
