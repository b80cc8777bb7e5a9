package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
)

// fakeLists are the suppression lists of a provider, which remove every address.
type fakeLists struct{ models.ProviderLists }

func (*fakeLists) Lists() []models.ProviderList { return []models.ProviderList{{Name: "blocks"}} }

func (*fakeLists) Unlist(context.Context, string, string) error { return nil }

// TestProviderSuppressionCommands lists what a provider suppresses and we do not, and clears it there.
func TestProviderSuppressionCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, _ := d.run("provider suppressions sg")
	require.Equal(t, "the provider suppresses no address that is not suppressed here\n", out)
	e := drift.Entry{Email: "ann@example.com", Provider: "sg", List: "blocks", Text: "550 no", At: time.Now().UTC()}
	require.NoError(t, drift.Note(t.Context(), d.store, &e))
	out, _ = d.run("provider suppressions sg")
	require.Regexp(t, `(?m)^ann@example.com +blocks .* 550 no$`, out)
	out, _ = d.run("provider suppressions clear sg ann@example.com --list blocks --why asked")
	require.Equal(t, "the provider does not suppress ann@example.com any more\n", out)
	out, _ = d.run("provider suppressions sg")
	require.NotContains(t, out, "ann@example.com")
	out, _ = d.run("audit")
	require.Contains(t, out, "provider.unlist")
}

// TestReceivedMail: the check of a received mail reads the file, and its exit code says whether something is wrong.
func TestReceivedMail(t *testing.T) {
	t.Parallel()
	file, good := filepath.Join(t.TempDir(), "mail.eml"), filepath.Join(t.TempDir(), "good.eml")
	fields := "List-Unsubscribe: <https://x.test/u>\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\n"
	for signed, code := range map[string]int{"list-unsubscribe:list-unsubscribe-post": 0, "list-unsubscribe": 1} {
		mail := "DKIM-Signature: d=example.com; h=from:" + signed + "; b=x\n" + fields + "\nHello\n"
		require.NoError(t, os.WriteFile(file, []byte(mail), 0o600))
		if code == 0 {
			require.NoError(t, os.WriteFile(good, []byte(mail), 0o600))
		}
		out, _ := typed(t, code, "", "provider", "check", "--received", file)
		require.Contains(t, out, "DKIM: the signature of example.com")
	}
	out, _ := typed(t, 0, "", "provider", "check", "--json", "--received", good)
	require.Regexp(t, `^{"provider":null,"state":"ok","about":"DKIM","text":".*","to_do":null}\n$`, out)
	_, errs := typed(t, 1, "", "provider", "check", "--received", file+"x")
	require.Contains(t, errs, "no such file")
}
