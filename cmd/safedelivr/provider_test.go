package main

import (
	"context"
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
