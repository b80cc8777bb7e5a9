package safedelivr_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// oldWordings are wordings that a reader stumbled over, with those that replaced them.
var oldWordings = map[string]string{
	"What has to be mended":               "Fix the highlighted fields and try again.",
	"has no value at any recipient":       "No recipient has a value for",
	"give it in vars":                     "Add a column",
	"Reply to, if elsewhere":              "Reply-to (optional)",
	"html (or body)":                      "html",
	"nobody yet":                          "No recipients yet",
	"took nothing for":                    "was failing for",
	"It refused calls with":               "Calls with … failed",
	"the provider could not be reached":   "returned 503 (service unavailable)",
	"How it went out":                     "Send rate by provider",
	"mails handed over per second":        "messages per second",
	"Through which provider":              "By provider",
	"held for a person to decide":         "held for review",
	"Stopped stopped":                     "Stopped by",
	"Leave it as it is":                   "Back",
	"batch for ever":                      "permanently",
	"for the audit trail; may stay empty": "Reason (optional, recorded in the audit log)",
	"Retry what failed":                   "Retry 3 of 8 failed messages?",
	"tells what becomes of":               "Waiting for delivery events.",
	"nothing loses it":                    "Stored durably.",
	"looking for the recipient that":      "sent in smaller calls to find the address that",
	"for the sake of some":                "because of one address in it",
	"Let go by hand":                      "Retried manually",
	"released by hand":                    "Retried manually",
	"when you point at it":                "hover for UTC",
	"called it spam":                      "Marked as spam by the recipient",
	"no provider account is left":         "all providers that could be used have failed",
	"a block rule of the operator":        "stopped by a block rule",
	"Half open":                           "Recovering",
	"Answers in":                          "Response time",
	"Reported within":                     "Time to report",
	"Side by side":                        "Comparison",
	"takes its last seconds along":        "its last few seconds are missing",
	"Providers now":                       "Providers",
	"All about them":                      "View all",
	"It may: send":                        "Permissions",
	"what belongs to everybody":           "administer everything",
	"As the system":                       "System",
	"Sums: All right":                     "Consistency check: OK",
	"That is how it should be":            "No parked messages",
	"fits all that a rule names":          "matching every condition",
	"may send as nobody until":            "cannot send until",
	"are found whole only":                "Enter a full address or ID.",
	"To the newest":                       "First",
	"To your own":                         "My batches",
	"To the overview":                     "Back to overview",
	"refusal-to-be":                       "first failed call",
	"while the door was shut":             "missed events",
	"The way of a batch":                  "Life of a batch",
	"For tries without Docker":            "To try it without Docker",
	"answered 503: the provider":          "returned 503 (service unavailable)",
}

// texts returns the text of a file that people may read: string literals of Go, and all of others. Literals that are
// added are one.
func texts(t *testing.T, path string) string {
	t.Helper()
	if filepath.Ext(path) != ".go" {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		return strings.Join(strings.Fields(string(raw)), " ")
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var out strings.Builder
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			if n.Kind == token.STRING && err == nil {
				out.WriteString(text)
			}
		case *ast.BinaryExpr, *ast.ParenExpr: // one text
		default:
			out.WriteByte('\n')
		}
		return true
	})
	return out.String()
}

// TestOldWordings: no page, text of the program or document has a wording that was replaced.
func TestOldWordings(t *testing.T) {
	t.Parallel()
	skipped := []string{".git", "node_modules", "testdata", "screenshots"}
	read := map[string]int{}
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && slices.Contains(skipped, e.Name()):
			return filepath.SkipDir
		case e.IsDir(), strings.HasSuffix(path, "_test.go"),
			!slices.Contains([]string{".go", ".html", ".md", ".js", ".yaml"}, filepath.Ext(path)):
			return nil
		}
		read[filepath.Ext(path)]++
		text := texts(t, path)
		for old, now := range oldWordings {
			if strings.Contains(text, old) {
				t.Errorf("%s: %q is now %q", path, old, now)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, read[".go"], 200)
	require.Greater(t, read[".html"], 20)
	require.Greater(t, read[".md"], 10)
}
