package app

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version returns the version of the program, or the commit that it was built from, and that of Go.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v += "-" + s.Value[:12]
			}
		}
	}
	return "safedelivr " + v + " " + info.GoVersion
}

// Build returns the version of the program, and the commit that it was built from with its date, one a line.
func Build() string {
	lines := []string{Version()}
	commit, at, changed := "unknown", "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value
			case s.Key == "vcs.time":
				at = " of " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = ", with changes that are not committed"
			}
		}
	}
	return strings.Join(append(lines, "commit "+commit+at+changed, runtime.GOOS+"/"+runtime.GOARCH), "\n")
}
