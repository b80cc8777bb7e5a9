//go:build browser

package dashboard

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// shownNow describes what a page shows: its address, heading, filters, tabs and the links of its lists.
const shownNow = `JSON.stringify([
	location.pathname + location.search,
	document.querySelector("h1").innerText,
	[...document.querySelectorAll("main form[method=get] :is(input:not([type=hidden]), select)")]
		.map((e) => [e.name, e.value]),
	[...document.querySelectorAll("main [aria-current]")].map((e) => e.innerText),
	[...document.querySelectorAll("main .more, main .pager")].map((e) => e.innerText),
	[...document.querySelectorAll("main .rows li a")].map((e) => e.getAttribute("href")),
])`

// TestBrowserBackOnAllPages: the way back to a page, and its bookmark, lead to the same heading, filters, list and page
// of the list.
func TestBrowserBackOnAllPages(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.mixed("local", 26)
	f.summed(id)
	key, _, err := f.service.People.CreateKey(t.Context(), service.Caller{User: "local"}, "shop", models.KeyOptions{})
	require.NoError(t, err)
	b := f.logIn(f.url)
	b.open("/logs?size=25")
	b.press("Next")
	b.until(`location.search.includes("cursor=") && document.readyState === "complete"`)
	second := eval[string](b, "location.pathname + location.search")
	batch := "/batches/" + id.String()
	b.open("/")
	pages := append(eval[[]string](b, `[...new Set(
		[...document.querySelectorAll("header a[href^='/'], nav a[href^='/']")].map((a) => a.pathname))]`),
		batch, batch+"?state=failed", "/logs?state=failed&email=@example.com", second,
		"/logs/"+id.Log(3).String(), "/search?q="+url.QueryEscape("r1"), "/statistics?by=sender", "/providers?range=week",
		"/providers/sg/offline", "/drafts", "/keys/"+key.ID+"/requests", "/operations/parked", "/operations/blocks",
		"/operations/users", "/operations/users/local", "/operations/users/local/limits", "/operations/keys",
		"/operations/audit?what=key.create", "/installation/endpoints")
	var seen []string
	for _, path := range pages {
		b.open(path)
		b.until(`document.readyState === "complete"`)
		seen = append(seen, eval[string](b, shownNow))
	}
	for i := len(pages) - 2; i >= 0; i-- {
		eval[bool](b, `(setTimeout(() => history.back()), true)`)
		b.until(`document.readyState === "complete" && document.querySelector("h1") && ` +
			shownNow + ` === ` + quoteJS(seen[i]))
	}
	for i, path := range pages {
		b.open(path)
		b.until(`document.readyState === "complete" && ` + shownNow + ` === ` + quoteJS(seen[i]))
	}
	require.Empty(t, b.complaints())
}
