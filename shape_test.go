package safedelivr_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shape are numbers of the source without its tests. A number that fell is written here. One rises only with its
// reason in ARCHITECTURE.md, Size.
var shape = map[string]int{
	"methods of service.Service":      31,
	"methods of dashboard.Dashboard":  6,
	"methods of a room of dashboard":  30, // of the type with the most of them
	"methods of a room of service":    39,
	"methods of main.cli":             27,
	"methods of any type":             52, // but store.Store
	"methods of the store's contract": 86,
	"exported names of models":        432,
	"exported names of service":       30,
	longFunctions:                     20,
	"thousands of lines, at most":     151, // of Go, and of the part of the OpenAPI document that is not generated
	linesOfRest:                       120,
	linesOfKind:                       2300,
	linesOfLargest:                    1200,
	linesOfWays:                       6500,
	linesOfDialect:                    1500,
}

// The lines of providers and of their simulator are counted apart, because each kind of provider adds some.
const (
	linesOfRest    = "thousands of lines without providers and simulator, at most"
	linesOfKind    = "lines of a kind of provider, with its stand-in and what all share, on average, rounded up to hundreds"
	linesOfLargest = "lines of the largest kind of provider, rounded up to hundreds"
)

// The ways in that applications already speak are counted apart, too: the folders of api, and waysIn.
const (
	linesOfWays    = "lines of dialects, SMTP and what they share, rounded up to hundreds"
	linesOfDialect = "lines of the largest dialect, rounded up to hundreds"
)

var waysIn = []string{"service/mailparse", "service/rawmail", "submission"}

const longFunctions = "functions of more than 60 lines"

// TestShape counts what makes the source hard to read. See ARCHITECTURE.md.
func TestShape(t *testing.T) {
	t.Parallel()
	found, lines, methods, long := map[string]int{}, 0, map[string]int{}, []string(nil)
	kinds, ofKinds, dialects, ofWays := map[string]int{}, 0, map[string]int{}, 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || name == "node_modules" || len(name) > 1 && name[0] == '.'):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(f) {
			return err
		}
		n, room := files.File(f.Pos()).LineCount(), filepath.ToSlash(filepath.Dir(path))
		switch folder, isProvider := strings.CutPrefix(room, "providers/"); {
		case isProvider && !strings.HasPrefix(folder, "internal/"):
			kinds[folder] += n
			ofKinds += n
		case isProvider, room == "providers", strings.HasPrefix(room, "lab/simulator"):
			ofKinds += n
		case strings.HasPrefix(room, "api/"):
			dialects[room] += n
			ofWays += n
		case slices.Contains(waysIn, room):
			ofWays += n
		default:
			lines += n
		}
		for _, decl := range f.Decls {
			count(found, f.Name.Name, decl)
			fn, ok := decl.(*ast.FuncDecl)
			if ok && isLong(files, fn) {
				long = append(long, path+" "+fn.Name.Name)
			}
			if ok && fn.Recv != nil {
				methods[filepath.ToSlash(filepath.Dir(path))+"/"+receiver(fn.Recv.List[0].Type)]++
			}
		}
		return nil
	}))
	for of, n := range methods {
		if of != "store/Store" {
			found["methods of any type"] = max(found["methods of any type"], n)
		}
		if layer, _, _ := strings.Cut(of, "/"); strings.Count(of, "/") > 1 {
			found["methods of a room of "+layer] = max(found["methods of a room of "+layer], n)
		}
	}
	base, err := os.ReadFile("api/openapi.base.yaml")
	require.NoError(t, err)
	lines += strings.Count(string(base), "\n")
	found[linesOfRest] = (lines + 999) / 1000
	found["thousands of lines, at most"] = (lines + ofKinds + ofWays + 999) / 1000
	found[linesOfKind] = (ofKinds/len(kinds) + 99) / 100 * 100
	found[linesOfLargest] = (slices.Max(slices.Collect(maps.Values(kinds))) + 99) / 100 * 100
	found[linesOfWays] = (ofWays + 99) / 100 * 100
	found[linesOfDialect] = (slices.Max(slices.Collect(maps.Values(dialects))) + 99) / 100 * 100
	found[longFunctions] = len(long)
	for what, most := range shape {
		if found[what] > most && what == longFunctions {
			t.Logf("%s:\n%s", what, strings.Join(long, "\n"))
		}
		require.LessOrEqual(t, found[what], most,
			"%s: make it fewer, or write into ARCHITECTURE.md, Size, why it rises", what)
		require.Equal(t, most, found[what], "%s: the number fell; write it into shape", what)
	}
}

// isLong reports whether a function has more than 60 lines.
func isLong(files *token.FileSet, f *ast.FuncDecl) bool {
	return f.Body != nil && files.Position(f.End()).Line-files.Position(f.Pos()).Line > 61
}

// count adds what shape counts of a declaration.
func count(found map[string]int, pkg string, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			found["exported names of "+pkg] += exported(d.Name)
			return
		}
		found["methods of "+pkg+"."+receiver(d.Recv.List[0].Type)]++
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				found["exported names of "+pkg] += exported(s.Name)
				if i, ok := s.Type.(*ast.InterfaceType); ok && pkg == "models" && strings.HasSuffix(s.Name.Name, "Store") {
					for _, m := range i.Methods.List {
						found["methods of the store's contract"] += len(m.Names)
					}
				}
			case *ast.ValueSpec:
				for _, name := range s.Names {
					found["exported names of "+pkg] += exported(name)
				}
			}
		}
	}
}

// exported returns 1 for an exported name.
func exported(name *ast.Ident) int {
	if name.IsExported() {
		return 1
	}
	return 0
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
