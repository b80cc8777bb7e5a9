package providertest

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A List is a page of a suppression list of the provider as its API shows it, and its meaning.
type List struct {
	List string
	Body string // of the answer
	Want []models.Listed
}

// testLists checks that pages are read, that what cannot be read is left out and counted, and that answers of all kinds
// are classified.
func testLists(t *testing.T, s Suite) {
	lists, ok := adapter(t, s, "http://127.0.0.1:1").(models.ProviderLists)
	if !ok {
		return
	}
	for _, l := range s.Lists {
		p := answering(t, s, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(cmp.Or(s.KeyHeader, "Authorization")) == "" {
				t.Error("a request without a key")
			}
			_, _ = io.WriteString(w, l.Body)
		}).(models.ProviderLists)
		page, err := p.ReadList(t.Context(), models.ListQuery{List: l.List, To: time.Now()})
		if err != nil || page.Skipped != 1 || !slices.EqualFunc(page.Entries, l.Want, sameListed) {
			t.Errorf("list %s: %+v, %v\nwant %+v and 1 skipped", l.List, page, err, l.Want)
		}
	}
	names := map[string]bool{}
	for _, l := range lists.Lists() {
		if names[l.Name] || l.Reason != "" && !l.Reason.Valid() {
			t.Errorf("list %+v", l)
		}
		names[l.Name] = true
		testListAnswers(t, s, l.Name)
		testUnlist(t, s, l.Name)
	}
	for _, l := range s.Lists {
		delete(names, l.List)
	}
	if len(names) > 0 {
		t.Errorf("the suite has no page of %v", names)
	}
}

func sameListed(a, b models.Listed) bool {
	same := a.At.Equal(b.At)
	a.At, b.At = time.Time{}, time.Time{}
	return same && a == b
}

// testListAnswers checks the answers to reading and removing.
func testListAnswers(t *testing.T, s Suite, list string) {
	for status, want := range map[int]error{401: models.ErrNoLists, 403: models.ErrNoLists, 500: nil, 503: nil} {
		p := answering(t, s, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }).(models.ProviderLists)
		_, read := p.ReadList(t.Context(), models.ListQuery{List: list, To: time.Now()})
		for _, err := range []error{read, p.Unlist(t.Context(), list, "ann@rcpt.test")} {
			if err == nil || want != nil && !errors.Is(err, want) || want == nil && errors.Is(err, models.ErrNoLists) ||
				strings.Contains(err.Error(), "ann") {
				t.Errorf("list %s: %d answered: %v", list, status, err)
			}
		}
	}
	p := answering(t, s, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	if _, err := p.(models.ProviderLists).ReadList(t.Context(), models.ListQuery{List: list, To: time.Now()}); err == nil {
		t.Errorf("list %s: no error for a page that is no JSON", list)
	}
}

// testUnlist checks that exactly one address is removed, with any characters, and that an address that is not listed is
// no error.
func testUnlist(t *testing.T, s Suite, list string) {
	var mu sync.Mutex
	var asked []string
	status := http.StatusOK
	p := answering(t, s, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		if s.Removed != nil {
			asked = append(asked, s.Removed(r, body))
			asked = slices.DeleteFunc(asked, func(a string) bool { return a == "" })
		} else if last := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]; r.Method == http.MethodDelete {
			asked = append(asked, last+r.URL.RawQuery)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"message":"done"}`)
	}).(models.ProviderLists)
	for _, address := range []string{"ann@rcpt.test", "a+b?c#d%41@rcpt.test"} {
		for _, status = range []int{http.StatusOK, http.StatusNotFound} {
			asked = nil
			err := p.Unlist(t.Context(), list, address)
			if err != nil || len(asked) != 1 || asked[0] != address {
				t.Errorf("list %s: %d answered: %q, %v", list, status, asked, err)
			}
		}
	}
	if err := p.Unlist(t.Context(), "unknown", "ann@rcpt.test"); !errors.Is(err, models.ErrInvalid) {
		t.Errorf("an unknown list: %v", err)
	}
}
