package safedelivr_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// licences are those that modules of the binary may have, each with words that only its text has. A text with other
// words, like one of the GPL or the AGPL, is refused.
var licences = map[string][]string{
	"Apache-2.0":   {"Apache License Version 2.0", "Grant of Copyright License"},
	"BSD-3-Clause": {"Redistribution and use in source and binary forms", "endorse or promote products"},
	"BSD-2-Clause": {"Redistribution and use in source and binary forms", "disclaimer in the documentation"},
	"ISC":          {"this software for any purpose with or without fee is hereby granted"}, // and 0BSD
	"MIT":          {"Permission is hereby granted, free of charge", "without restriction"},
	"MPL-2.0":      {"Mozilla Public License", "Covered Software"},
	"public":       {"has been dedicated to the public domain by the authors"}, // SQLite's
}

// licenceOf returns the licence of a text; "" if it is none of licences.
func licenceOf(text string) string {
	text = strings.Join(strings.Fields(regexp.MustCompile(`[*#/]+`).ReplaceAllString(text, " ")), " ")
	lower := strings.ToLower(text)
	for _, name := range []string{"MPL-2.0", "Apache-2.0", "BSD-3-Clause", "BSD-2-Clause", "MIT", "ISC", "public"} {
		fits := true
		for _, words := range licences[name] {
			fits = fits && strings.Contains(lower, strings.ToLower(words))
		}
		// The Mozilla licence names the GNU ones as those that it may be combined with.
		if fits && (name == "MPL-2.0" || !regexp.MustCompile(`gnu (lesser |affero )?general public`).MatchString(lower)) {
			return name
		}
	}
	return ""
}

// TestLicences: every module in the binary has a licence that allows its use without giving away what uses it.
func TestLicences(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Module", "./cmd/safedelivr")
	out, err := cmd.Output()
	require.NoError(t, err)
	type module struct {
		Path, Dir string
		Main      bool
	}
	checked := map[string]bool{}
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ Module *module }
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			require.NoError(t, err)
		}
		if p.Module == nil || p.Module.Main || checked[p.Module.Path] {
			continue // the standard library, or seen
		}
		checked[p.Module.Path] = true
		found := false
		for _, pattern := range []string{"LICEN[SC]E*", "COPYING*", "[Ll]icen[sc]e*"} {
			files, err := filepath.Glob(filepath.Join(p.Module.Dir, pattern))
			require.NoError(t, err)
			for _, file := range files {
				info, err := os.Stat(file)
				require.NoError(t, err)
				if info.IsDir() || strings.HasSuffix(file, "-LOGO") {
					continue // of all files of the repository, or of a picture, which is not in the binary
				}
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				require.NotEmpty(t, licenceOf(string(text)), "%s: the licence in %s is none of those that are allowed",
					p.Module.Path, filepath.Base(file))
				found = true
			}
		}
		require.True(t, found, "%s has no licence", p.Module.Path)
	}
	require.NotEmpty(t, checked)
}

// TestVendoredLicences: every library of the pages is listed with its licence, which is one of those that are allowed.
func TestVendoredLicences(t *testing.T) {
	t.Parallel()
	const folder = "dashboard/web/static/vendor"
	list, err := os.ReadFile(filepath.Join(folder, "README.md"))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(folder, "*.[cj]s*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		row := regexp.MustCompile("`" + regexp.QuoteMeta(filepath.Base(file)) + "`.*`(LICENSE[^`]*)`").FindSubmatch(list)
		require.NotNil(t, row, "%s is not listed", file)
		text, err := os.ReadFile(filepath.Join(folder, string(row[1])))
		require.NoError(t, err)
		require.NotEmpty(t, licenceOf(string(text)), "%s", row[1])
	}
}

// TestLicenceOf: texts of the GNU licences are refused, also beside another one.
func TestLicenceOf(t *testing.T) {
	t.Parallel()
	mit := "Permission is hereby granted, free of charge, to any person, to deal in the Software without\n// restriction"
	require.Equal(t, "MIT", licenceOf(mit))
	for _, text := range []string{
		"GNU GENERAL PUBLIC LICENSE Version 3",
		"GNU AFFERO\n GENERAL PUBLIC LICENSE",
		mit + " or the GNU Lesser General Public License",
		"All rights reserved",
	} {
		require.Empty(t, licenceOf(text), text)
	}
}
