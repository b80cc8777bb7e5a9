package safedelivr_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shape are numbers of the source without its tests, which may only fall. A test of a number that fell asks to write
// the new one here.
var shape = map[string]int{
	"methods of service.Service":      31,
	"methods of dashboard.Dashboard":  6,
	"methods of a room of dashboard":  31, // of the type with the most of them
	"methods of a room of service":    40,
	"methods of main.cli":             108,
	"methods of the store's contract": 86,
	"exported names of models":        454,
	"exported names of service":       37,
	"functions of more than 60 lines": 21,
	"thousands of lines, at most":     129, // of Go, and of the part of the OpenAPI document that is not generated
}

// TestShape counts what makes the source hard to read. See ARCHITECTURE.md.
func TestShape(t *testing.T) {
	t.Parallel()
	found, lines, methods := map[string]int{}, 0, map[string]int{}
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
		lines += files.File(f.Pos()).LineCount()
		for _, decl := range f.Decls {
			count(found, files, f.Name.Name, decl)
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[filepath.ToSlash(filepath.Dir(path))+"/"+receiver(fn.Recv.List[0].Type)]++
			}
		}
		return nil
	}))
	for of, n := range methods {
		if layer, _, _ := strings.Cut(of, "/"); strings.Count(of, "/") > 1 {
			found["methods of a room of "+layer] = max(found["methods of a room of "+layer], n)
		}
	}
	base, err := os.ReadFile("api/openapi.base.yaml")
	require.NoError(t, err)
	lines += strings.Count(string(base), "\n")
	found["thousands of lines, at most"] = (lines + 999) / 1000
	for what, most := range shape {
		require.LessOrEqual(t, found[what], most, what)
		require.Equal(t, most, found[what], "%s: the number fell; write it into shape", what)
	}
}

// count adds what shape counts of a declaration.
func count(found map[string]int, files *token.FileSet, pkg string, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Body != nil && files.Position(d.End()).Line-files.Position(d.Pos()).Line > 61 {
			found["functions of more than 60 lines"]++
		}
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
