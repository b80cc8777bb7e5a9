package app

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// Set by scripts/release.
var version, commit, date string

// Version returns the version of the program and that of Go.
func Version() string {
	v := version
	if info, ok := debug.ReadBuildInfo(); ok && v == "" && info.Main.Version != "(devel)" {
		v = info.Main.Version // of go install
	}
	return "safedelivr " + cmp.Or(v, "devel") + " " + runtime.Version()
}

// Build returns the version of the program, the commit that it was built from with its date, and the platform, one a
// line.
func Build() string {
	id, at, changed := commit, date, ""
	if info, ok := debug.ReadBuildInfo(); ok && id == "" {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				id = s.Value
			case s.Key == "vcs.time":
				at = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = ", with changes that are not committed"
			}
		}
	}
	return Version() + "\ncommit " + cmp.Or(id, "unknown") + " of " + cmp.Or(at, "an unknown date") + changed + "\n" +
		runtime.GOOS + "/" + runtime.GOARCH
}
