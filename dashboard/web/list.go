package web

import (
	"net/url"
	"strings"
)

// Tab is a filter that can be chosen.
type Tab struct {
	To, Text string
	Here     bool
	Count    int64
	Counted  bool
}

// Address returns a URL. The path may have a fragment.
func Address(path string, q url.Values) string {
	path, fragment, found := strings.Cut(path, "#")
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	if found {
		path += "#" + fragment
	}
	return path
}
