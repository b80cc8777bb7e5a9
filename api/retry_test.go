package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asksToRepeat matches the detail of an error that asks to repeat the request as it is.
var asksToRepeat = regexp.MustCompile(`(?i)\brepeat (the request|it)\b|\btry again (later|in a|after)`)

// TestRetryAfter: an error that asks to repeat the request as it is names the time, and so does each one that passes by
// itself: too many requests, and what cannot be reached. docs/errors.md says the same of each code.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var files []string
	for _, room := range []string{".", "../service", "../service/*", "../dashboard/*"} {
		some, err := filepath.Glob(room + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, some)
		files = append(files, some...)
	}
	timed, passing := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			sets, after := false, map[ast.Node]bool{} // a field of an error, and the errors on which After is called
			ast.Inspect(d, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if ok && s.Sel.Name == "After" {
					ast.Inspect(s.X, func(n ast.Node) bool { after[n] = true; return true })
				}
				sets = sets || ok && s.Sel.Name == "RetryAfter"
				return true
			})
			ast.Inspect(d, func(n ast.Node) bool {
				code, kind, detail := errorOf(n)
				if code == "" {
					return true
				}
				times := sets || after[n]
				timed[code] = timed[code] || times
				if kind == "TooMany" || kind == "Unavailable" || asksToRepeat.MatchString(detail) {
					passing[code] = true
					if !times {
						t.Errorf("%s: %s has no time: %s", file, code, detail)
					}
				}
				return true
			})
		}
	}
	require.Greater(t, len(passing), 12)
	doc, err := os.ReadFile("../docs/errors.md")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| <a id=\"([a-z_]+)\"></a>.*$").FindAllStringSubmatch(string(doc), -1)
	require.Greater(t, len(rows), 50)
	for _, row := range rows {
		named := strings.Contains(row[0], "Retry-After")
		if named && !timed[row[1]] || !named && passing[row[1]] {
			t.Errorf("docs/errors.md and the source differ about Retry-After of %s", row[1])
		}
	}
}

// errorOf returns the parts of an error that a call makes, as problem.New does; "" if it makes none.
func errorOf(n ast.Node) (code, kind, detail string) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) < 3 {
		return "", "", ""
	}
	name := nameOf(call.Fun)
	if name != "New" && name != "Fail" {
		return "", "", ""
	}
	code, err := textOf(call.Args[1])
	if err != nil {
		return "", "", ""
	}
	detail, _ = textOf(call.Args[2])
	return code, nameOf(call.Args[0]), detail
}

// nameOf returns the name of an identifier, also in another package.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// textOf returns the text of a constant expression.
func textOf(e ast.Expr) (string, error) {
	var parts []string
	var bad error
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok {
			part, err := strconv.Unquote(l.Value)
			parts, bad = append(parts, part), err
		}
		return bad == nil
	})
	if len(parts) == 0 {
		return "", strconv.ErrSyntax
	}
	return strings.Join(slices.Clip(parts), ""), bad
}
