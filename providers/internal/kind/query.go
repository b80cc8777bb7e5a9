package kind

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// JSON is json.Marshal without the escaping of <, > and &, which would make HTML much longer.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Ask sends a query with the API key to a path of the API that answers queries, and decodes its answer into out. in and
// out may be nil.
// Errors: those of transport.Client.Query.
func (b *Base[K]) Ask(ctx context.Context, method, path string, in, out any) error {
	q := transport.Query{Method: method, URL: b.queries + path, Header: http.Header{}, Timeout: b.Timeout}
	b.Authorize(q.Header, b.Keys().API)
	if in != nil {
		var err error
		if q.Body, err = JSON(in); err != nil {
			return err
		}
	}
	body, err := b.Client.Query(ctx, q)
	if err != nil {
		return fmt.Errorf("%s %w", b.Title, err)
	}
	if out != nil && json.Unmarshal(body, out) != nil {
		return errors.New(b.Title + " answered without JSON that can be read")
	}
	return nil
}

// Path returns the path for Ask of a URL that the API gave, like that of the next page. The key must not go elsewhere.
// Errors: models.ErrInvalid.
func (b *Base[K]) Path(url string) (string, error) {
	path, ok := strings.CutPrefix(url, b.queries+"/")
	if !ok {
		return "", fmt.Errorf("%w: the next page is not at the API", models.ErrInvalid)
	}
	return "/" + path, nil
}

// Status returns the status and the body of the answer that made a query fail; 0: there was none.
func Status(err error) (status int, body []byte) {
	var refused *transport.RefusedError
	if errors.As(err, &refused) {
		return refused.Status, refused.Body
	}
	return 0, nil
}

// BadKey adds the finding that the provider refused a query because of the key. It returns any other error.
func (b *Base[K]) BadKey(a *inspect.Account, err error, todo string) error {
	status, _ := Status(err)
	if status != http.StatusUnauthorized && status != http.StatusForbidden {
		return err
	}
	a.Add(inspect.Wrong, "key", fmt.Sprintf("%s refuses the key (%d)", b.Title, status), todo)
	return nil
}

// ReadList returns a page of a suppression list. read returns its items, each decoded as far as its types fit, and the
// cursor of the next page. An item without entries is counted as skipped.
func ReadList[K, T any](
	b *Base[K], name string, read func() (items []json.RawMessage, next string, err error),
	entries func(list models.ProviderList, item *T) []models.Listed,
) (page models.ListPage, err error) {
	var items []json.RawMessage
	list, err := b.List(name)
	if err == nil {
		items, page.Next, err = read()
	}
	for _, raw := range items {
		var item T
		parse.Into(raw, &item)
		found := entries(list, &item)
		page.Entries = append(page.Entries, found...)
		if len(found) == 0 {
			page.Skipped++
		}
	}
	return page, listError(name, err)
}

// Entry returns an entry of a list, or none if it has no address or no time.
func Entry(email, at parse.Str, reason models.SuppressionReason, text parse.Str) []models.Listed {
	t, ok := parse.Time(at)
	if !ok || email == "" {
		return nil
	}
	return []models.Listed{{Email: string(email), Reason: reason, Text: parse.Text(string(text)), At: t}}
}

// listError returns the error of a request for a list.
func listError(list string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, models.ErrNoLookup) {
		err = fmt.Errorf("%w: %w", models.ErrNoLists, err)
	}
	return fmt.Errorf("list %s: %w", list, err)
}

// Remove removes an address from a list by a request. It is no error if the list does not have it.
func (b *Base[K]) Remove(ctx context.Context, list, method, path string, in, out any) error {
	_, err := b.List(list)
	if err == nil {
		err = b.Ask(ctx, method, path, in, out)
	}
	if status, _ := Status(err); status == http.StatusNotFound {
		return nil
	}
	return listError(list, err)
}

// Pages reads the pages of a log. read reads the one of a cursor, which is empty for the first, and returns that of the
// next one, or "" if there is none.
// Errors: models.ErrInvalid, and those of read.
func Pages(read func(cursor string) (next string, err error)) error {
	for seen, at := map[string]bool{}, ""; ; seen[at] = true {
		next, err := read(at)
		if err != nil || next == "" {
			return err
		}
		if at = next; seen[at] {
			return fmt.Errorf("%w: a page of the log follows itself", models.ErrInvalid)
		}
	}
}
