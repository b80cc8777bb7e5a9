//go:build full

package safedelivr_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listed is a package as go list describes it for a target.
type listed struct {
	Dir, ImportPath string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Main bool }
	Error           *struct{ Err string }
}

// imports finds packages that were checked.
type imports struct {
	of  *listed
	all map[string]*types.Package
}

func (i imports) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if to := i.of.ImportMap[path]; to != "" {
		path = to
	}
	if p := i.all[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed", path)
}

// TestReleaseTargets: the packages of the program have no type errors on any target of scripts/release. Of other
// modules only declarations are checked.
func TestReleaseTargets(t *testing.T) {
	script, err := os.ReadFile("scripts/release")
	require.NoError(t, err)
	targets := regexp.MustCompile(`(?m)^TARGETS=\((.*)\)$`).FindSubmatch(script)
	require.NotNil(t, targets)
	own := map[string]int{}
	for _, target := range strings.Fields(string(targets[1])) {
		own[target] = checkTarget(t, target)
		require.Greater(t, own[target], 50, "the packages of this module")
	}
	require.Len(t, own, 6)
}

// checkTarget checks all packages of the program for a target, and returns how many are of this module.
func checkTarget(t *testing.T, target string) (own int) {
	t.Helper()
	system, arch, _ := strings.Cut(target, "/")
	const fields = "-json=Dir,ImportPath,GoFiles,ImportMap,Module,Error"
	list := exec.Command("go", "list", "-deps", "-e", fields, "./cmd/safedelivr")
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	all := map[string]*types.Package{}
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := in.Decode(&p)
		if errors.Is(err, io.EOF) {
			return own
		}
		require.NoError(t, err)
		if p.Error != nil {
			t.Errorf("%s: %s", target, p.Error.Err)
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		ours := p.Module != nil && p.Module.Main
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", target, err)
				continue
			}
			parsed = append(parsed, f)
		}
		conf := types.Config{
			Importer:         imports{&p, all},
			IgnoreFuncBodies: !ours,
			Sizes:            types.SizesFor("gc", arch),
			Error:            func(err error) { t.Errorf("%s: %v", target, err) },
		}
		all[p.ImportPath], _ = conf.Check(p.ImportPath, files, parsed, nil) // Error received the errors
		if ours {
			own++
		}
	}
}
