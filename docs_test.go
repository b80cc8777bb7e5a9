package safedelivr_test

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// The documents name the tests that show a promise. Each of those tests must exist.
func TestDocsNameExistingTests(t *testing.T) {
	t.Parallel()
	function, name := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile("`(Test\\w+)`")
	exists, named := map[string]bool{}, map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		isTest, isDoc := strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, ".md")
		if err != nil || !isTest && !isDoc {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(raw, -1) {
			exists[string(m[1])] = true
		}
		if isDoc {
			for _, m := range name.FindAllSubmatch(raw, -1) {
				named[string(m[1])] = path
			}
		}
		return err
	}))
	require.NotEmpty(t, named)
	for test, path := range named {
		require.True(t, exists[test], "%s names %s, which does not exist", path, test)
	}
}

// The page Compose has each field that the guide for newsletters names, and the guide says how to choose a category and
// columns.
func TestNewsletterNamesFieldsOfCompose(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("docs/newsletter.md")
	require.NoError(t, err)
	page, err := os.ReadFile("dashboard/compose/compose.html")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(guide), "\n## 2. ")
	text, _, _ = strings.Cut(text, "\n## Afterwards")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`\*([^*\n]+)\*`).FindAllStringSubmatch(text, -1) {
		named[m[1]] = true
		has := strings.Contains(string(page), m[1])
		require.True(t, has, "the page Compose has no field %s", m[1])
	}
	for _, field := range []string{"Category", "Address", "Name", "Leave out", "Skip rows with mistakes"} {
		require.True(t, named[field], "the guide does not say how to use %s", field)
	}
}

// The page of clients that were run has the versions that the tests install, or that the module requires.
func TestClientsPageHasVersionsOfTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/clients.md")
	require.NoError(t, err)
	installed, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir("e2e", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		installed = append(installed, raw...)
		return err
	}))
	versions := regexp.MustCompile(`\d+\.\d+\.\d+`).FindAllString(string(page), -1)
	require.Greater(t, len(versions), 15)
	for _, version := range versions {
		require.Contains(t, string(installed), version)
	}
}

// The documents offer only what exists: scripts, packages and folders of this repository and, until the first release,
// nothing to download.
func TestDocsOfferWhatExists(t *testing.T) {
	t.Parallel()
	script := regexp.MustCompile("(?m)(?:^|[\\s`(\"])((?:\\./)?scripts/[a-z-]+)")
	run := regexp.MustCompile(`go (?:run|test|install|build|generate) (?:-\S+ (?:\w+ )?)*(\./[\w/.-]*)`)
	local := regexp.MustCompile(`(?:npm install|pip install) \./safedelivr/(\S+)`)
	download := regexp.MustCompile(`docker pull|ghcr\.io|releases/download|safedelivr@|brew install|` +
		`(?:npm install|pip install) @?safedelivr`)
	changes, err := os.ReadFile("CHANGELOG.md")
	require.NoError(t, err)
	released := len(regexp.MustCompile(`(?m)^## `).FindAll(changes, -1)) > 1
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == "node_modules" {
			return cmp.Or(err, fs.SkipDir)
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		raw, err := os.ReadFile(path)
		for _, re := range []*regexp.Regexp{script, run, local} {
			for _, m := range re.FindAllStringSubmatch(string(raw), -1) {
				found++
				place := strings.TrimSuffix(strings.TrimRight(m[1], "."), "/...")
				_, missing := os.Stat(filepath.FromSlash(strings.TrimSuffix(place, "/")))
				require.NoError(t, missing, "%s names %s", path, m[0])
			}
		}
		if m := download.Find(raw); m != nil {
			require.True(t, released, "%s offers %q, and nothing is released", path, m)
		}
		return err
	}))
	require.Greater(t, found, 50)
	for _, path := range []string{"README.md", "SECURITY.md"} {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, !released, strings.Contains(string(raw), "Nothing is released yet"), path)
	}
}

// docs/api.md names each route of the API in a table, and no other.
func TestDocsNameRoutes(t *testing.T) {
	t.Parallel()
	described, named, path := map[string]bool{}, map[string]bool{}, ""
	raw, err := os.ReadFile("api/openapi.yaml")
	require.NoError(t, err)
	paths, _, _ := strings.Cut(string(raw), "\nwebhooks:")
	line := regexp.MustCompile(`(?m)^ {2}(/.+):$|^ {4}(get|post|put|patch|delete):$`)
	for _, m := range line.FindAllStringSubmatch(paths, -1) {
		if path = cmp.Or(m[1], path); m[2] != "" {
			described[strings.ToUpper(m[2])+" "+path] = true
		}
	}
	page, err := os.ReadFile("docs/api.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?m)^\\| (`[A-Z]+ /.*?) \\|").FindAllStringSubmatch(string(page), -1) {
		for route := range strings.SplitSeq(m[1], ", ") {
			route, _, _ = strings.Cut(strings.Trim(route, "`"), "?")
			named[route] = true
		}
	}
	testkit.SameLines(t, slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(named)),
		"docs/api.md names all routes")
}
