package safedelivr_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
