package dashboard

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// aFigure matches a text that is a count or a share, or has a count of messages.
var aFigure = regexp.MustCompile(`^[<>]? ?[0-9\x{202f}]+([.][0-9]+)?( %)?$|[0-9] (messages?|recipients?|mails?)\b`)

// attribute returns an attribute of an element, or "".
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// heading returns the text of the heading of a cell's column.
func heading(cell *html.Node) string {
	column := 0
	for n := cell.PrevSibling; n != nil; n = n.PrevSibling {
		if n.Type == html.ElementNode {
			column++
		}
	}
	table := cell
	for table.Data != "table" {
		table = table.Parent
	}
	for n := range table.Descendants() {
		if n.Data == "th" && attribute(n, "scope") == "col" {
			if column == 0 {
				return n.FirstChild.Data
			}
			column--
		}
	}
	return ""
}

// unlinked returns the figures of a page that are in no link: each with the label of what it is in, and the heading of
// its column.
func unlinked(t *testing.T, page string) (out []string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	var visit func(n *html.Node, label string)
	visit = func(n *html.Node, label string) {
		if n.Type == html.ElementNode {
			if slices.Contains([]string{"a", "head", "script", "time", "option", "select", "nav", "code"}, n.Data) {
				return
			}
			for _, name := range []string{"aria-labelledby", "aria-label"} {
				if l := attribute(n, name); l != "" {
					label = l
				}
			}
			if n.Data == "td" {
				label += ", " + heading(n)
			}
			if attribute(n, "class") == "tile" && n.FirstChild != nil && n.FirstChild.FirstChild != nil {
				label += ", " + n.FirstChild.FirstChild.Data
			}
		}
		if text := strings.TrimSpace(n.Data); n.Type == html.TextNode && aFigure.MatchString(text) {
			out = append(out, label+": "+text)
		}
		for c := range n.ChildNodes() {
			visit(c, label)
		}
	}
	visit(root, "")
	return out
}

// noLists are patterns of the figures behind which there is no list, and why.
var noLists = map[string]string{
	`^: [0-9]+ messages of “`:                                                    "the notice has a link of its own",
	`^: (26 recipients|84.6 %)`:                                                  "the page is about them, and has a tab for each state",
	`^(Mailgun mg|SendGrid sg): 0`:                                               "a rate or a limit of the provider",
	`^Recipients of ([03] calls|its events): `:                                   "counted at the time of a call or an event, of all users",
	`^hour-title: `:                                                              "the same",
	`^(Shares of messages that were delivered|Deferrals): `:                      "the same",
	`^Providers in the last (hour, by minute|24 hours, by 15 minutes), `:         "the same",
	`^Comparison of providers, [a-zA-Z ]+: [0-9.]+ %$`:                           "the share of the number beside it",
	`^(compare|history)-title: `:                                                 "an explanation",
	`mail of these days, (Complained|Opened|Clicked): `:                          "lists do not select by these events",
	`^Mail by (tag|sender), (Deferred|Complained|Unsubscribed|Opened|Clicked): `: "the same",
	`^Mail by sender, `:                                                          "lists of recipients do not select by the domain of the sender",
	`^Now, Consistency check: ; `:                                                "what was counted, and was right",
	`^How full the queues are, `:                                                 "a broker does not show its messages",
	`^workers-title: `:                                                           "the share of a worker",
	`^Mail by provider, `:                                                        "a list by provider has what was rerouted from it, too",
	`^This provider’s mail of these days, `:                                      "the same",
	`: 0$`:                     "an empty list",
	`^flow-title: Calls with `: "it counts calls, not mail; the notice leads to all that were rerouted",
}

// TestFiguresAreLinks: a figure on a page is in a link to the list behind it, unless there is none.
func TestFiguresAreLinks(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.happened("w", 0, "sg", func(t *telemetry.ProviderTally) {
		t.Calls, t.Accepted, t.Refused, t.Delivered, t.Deferred, t.Failed = 3, 11, 22, 10, 2, 1
	})
	b := f.byLink(login.LocalUser()) // the pages keep the history for a while
	id := f.mixed("local", 26)
	used := map[string]bool{}
	for _, path := range []string{
		"/", "/batches", "/batches/" + id.String(), "/logs", "/providers", "/providers?range=day", "/statistics",
		"/statistics?by=tag&name=news",
		"/statistics?by=sender", "/statistics?by=provider", "/statistics?by=provider&name=sg", "/search?q=r1",
		"/suppressions", "/operations", "/operations/parked", "/operations/events",
	} {
		for _, figure := range unlinked(t, b.get(path).text) {
			known := false
			for pattern := range noLists {
				if regexp.MustCompile(pattern).MatchString(figure) {
					known, used[pattern] = true, true
				}
			}
			if !known {
				t.Errorf("%s: %s", path, figure)
			}
		}
	}
	require.Contains(t, textOf(b.get("/providers").text), "there is no list of exactly their messages")
	require.Len(t, used, len(noLists), "an exception is not needed")
	require.Equal(t, []string{"Counts, Tried: 4"}, unlinked(t, `<div aria-label="Counts"><table><tr><th scope="col">At</th>
		<th scope="col">Tried</th></tr><tr><td><a href="/logs">3</a></td><td>4</td></tr></table></div>`))
}
