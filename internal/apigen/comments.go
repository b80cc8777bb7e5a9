package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

const module = "github.com/safedelivr/safedelivr/"

// comments finds the comments of the fields of structs in the sources.
type comments struct {
	root  string
	files map[string]map[string]string // by package; the comments by "Type.Field"
	err   error                        // the first one
}

// of returns the comment of a field of a struct as one paragraph.
func (c *comments) of(t reflect.Type, field string) string {
	if c.files[t.PkgPath()] == nil {
		c.read(t.PkgPath())
	}
	return c.files[t.PkgPath()][t.Name()+"."+field]
}

// read reads the comments of a package.
func (c *comments) read(pkg string) {
	out := map[string]string{}
	if c.files == nil {
		c.files = map[string]map[string]string{}
	}
	c.files[pkg] = out
	dir := filepath.Join(c.root, strings.Replace(strings.TrimPrefix(pkg, module), "main", "internal/apigen", 1))
	list, err := os.ReadDir(dir)
	for _, entry := range list {
		if err == nil && strings.HasSuffix(entry.Name(), ".go") && !strings.HasSuffix(entry.Name(), "_test.go") {
			var f *ast.File
			if f, err = parser.ParseFile(token.NewFileSet(), filepath.Join(dir, entry.Name()), nil,
				parser.ParseComments); err == nil {
				addComments(f, out)
			}
		}
	}
	if c.err == nil {
		c.err = err
	}
}

func addComments(f *ast.File, out map[string]string) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range s.Fields.List {
			text := field.Doc.Text()
			if text == "" {
				text = field.Comment.Text()
			}
			for _, name := range field.Names {
				out[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
			}
		}
		return true
	})
}
