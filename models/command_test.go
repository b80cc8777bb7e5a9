package models

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommandKinds: each constant of CommandKind is in the table of what is known, once and with words.
func TestCommandKinds(t *testing.T) {
	t.Parallel()
	var kinds []CommandKind
	for kind, words := range CommandKinds() {
		require.NotEmpty(t, words, kind)
		require.NotContains(t, kinds, kind, "it is in commandKinds twice")
		kinds = append(kinds, kind)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "command.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	constants := 0
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "CommandKind" {
			constants++
			kind, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			require.Contains(t, kinds, CommandKind(kind), "add %s to commandKinds", spec.Names[0])
		}
		return true
	})
	require.Equal(t, len(kinds), constants, "the constants of CommandKind are in command.go, each with its type")
	require.False(t, CommandKind("not.yet.known").Known())
	require.True(t, slices.ContainsFunc(kinds, CommandKind.Withholds))
}
