//go:build browser

package dashboard

import "testing"

// TestBrowserSuppressions adds an address, removes it after the question, and looks at the page.
func TestBrowserSuppressions(t *testing.T) {
	f := newRig(t, nil)
	b := f.logIn(f.url)
	b.open("/suppressions")
	b.sees("No address is suppressed.")
	for _, email := range []string{"ann@example.com", "bob@example.com"} {
		b.fill("email", email)
		b.press("Add")
		b.sees("The address was added.")
		b.sees(email)
	}
	b.lookAround("suppressions", "")
	b.press("Remove")
	b.answer()
	b.sees("The address was removed.")
}
