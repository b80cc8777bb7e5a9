package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSuppressionCommands adds, lists, exports, imports and removes suppressed addresses.
func TestSuppressionCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, _ := d.run("suppression add Ann@example.com --reason complaint")
	require.Equal(t, "ann@example.com is suppressed\n", out)
	d.run("suppression add bob@example.com --user ada --category news --for 720h")
	out, _ = d.run("suppression list")
	require.Regexp(t, `(?m)^ann@example.com +complaint `, out)
	require.NotContains(t, out, "bob")
	out, _ = d.run("suppression export --user ada")
	require.Regexp(t, `(?m)^bob@example.com,manual,news,20.*Z,,20.*Z,api$`, out)

	d.run("suppression add =1@example.com --user ada")
	formula, _ := d.run("suppression export --user ada")
	require.Regexp(t, `(?m)^'=1@example.com,`, formula, "a formula is not quoted")

	file := filepath.Join(t.TempDir(), "list.csv")
	require.NoError(t, os.WriteFile(file, []byte(out+"eve\n"), 0o600))
	out, errs := d.run("suppression import " + file)
	require.Equal(t, "2 rows: 1 added, 1 left out because of mistakes\n", out)
	require.Contains(t, errs, `row 2/email: "eve" is not`)
	out, _ = d.run("suppression list")
	require.Contains(t, out, "bob@example.com")
	out, errs = d.run("suppression list --limit 1 --json")
	require.Regexp(t, `^{"email":"\w+@example.com","reason":.*}\n$`, out)
	require.Equal(t, "There are more rows: --limit N or --all.\n", errs)

	for _, more := range []string{"", " (it was so before)"} {
		out, _ = d.run("suppression remove ann@example.com --why sorry")
		require.Equal(t, "ann@example.com is not suppressed any more"+more+"\n", out)
	}
	out, _ = d.run("audit")
	require.Contains(t, out, "suppression.remove")
}
