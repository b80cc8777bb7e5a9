// Package nearest finds the most similar name, for errors about names that do not exist.
package nearest

import "strings"

// longest is the length of the longest name that is looked at, because comparing takes time with its square.
const longest = 64

// Of returns the candidate that differs least from name, or "" if all differ by much.
func Of(name string, candidates []string) string {
	if len(name) > longest {
		return ""
	}
	best, least := "", min(max(2, len(name)/5), (len(name)-1)/2)+1
	for _, c := range candidates {
		if len(c) > longest {
			continue
		}
		if d := distance(name, c); d < least {
			best, least = c, d
		}
	}
	return best
}

// Hint asks whether another name was meant. It searches only when it is printed, because a request may have many wrong
// names, and an answer lists few.
type Hint struct {
	name       string
	candidates []string
}

// Meant returns a hint at the nearest candidate.
func Meant(name string, candidates []string) Hint { return Hint{name: name, candidates: candidates} }

// words writes the words of a name without what joins them.
var words = strings.NewReplacer("_", "", "-", "")

// String returns a sentence that asks whether the nearest candidate was meant, with a space before it, or "".
func (h Hint) String() string {
	plain := strings.ToLower(words.Replace(h.name))
	for _, c := range h.candidates { // replyTo, Reply-To
		if len(plain) <= longest && plain == strings.ReplaceAll(c, "_", "") && c != h.name {
			return " Did you mean " + c + "?"
		}
	}
	if c := Of(h.name, h.candidates); c != "" {
		return " Did you mean " + c + "?"
	}
	return ""
}

// distance returns how many letters must be added, removed, replaced or swapped with the next one to make b of a.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j], d[i][j-1], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], 1+d[i-2][j-2])
			}
		}
	}
	return d[len(a)][len(b)]
}
