//go:build browser

package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBrowserSuppressions adds an address, removes it after the question, and looks at the page.
func TestBrowserSuppressions(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.logIn(f.url)
	b.open("/suppressions")
	b.sees("No address is suppressed.")
	for _, email := range []string{"ann@example.com", "bob@example.com"} {
		b.fill("email", email)
		eval[bool](b, `(document.querySelector("#add button").click(), true)`)
		b.sees("The address was added.")
		b.sees(email)
	}
	b.lookAround("suppressions", "")
	b.press("Remove")
	b.answer()
	b.sees("The address was removed.")
}

// TestBrowserListedAtProvider clears an address at its provider after the question, and looks at the page.
func TestBrowserListedAtProvider(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.listed("blocks", "ann@example.com", "bob@example.com")
	f.board.providers.Sample(t.Context(), time.Now())
	b := f.logIn(f.url)
	b.open("/providers")
	eval[bool](b, `(document.querySelector("#sg details").open = true)`)
	b.press("Suppressed only there")
	b.at("/providers/sg/suppressions")
	b.sees("ann@example.com")
	b.lookAround("listed", "")
	b.press("Clear there")
	b.answer()
	b.sees("was removed from the provider's list")
	require.Len(t, f.lists.cleared, 1)
	require.Empty(t, b.complaints())
}
