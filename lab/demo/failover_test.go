package demo

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// output is the output of a demo that runs.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	until string        // in the last line
	done  chan struct{} // closed when that is written
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := strings.Contains(o.text.String(), o.until)
	n, err := o.text.Write(p)
	if !before && strings.Contains(o.text.String(), o.until) {
		close(o.done)
	}
	return n, err
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find returns the first group of a pattern in a text.
func find(t *testing.T, pattern, text string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, found, "%s in %s", pattern, text)
	return found[1]
}

// TestOneFailoverTime: the terminal and the page of the batch show the same failover time.
func TestOneFailoverTime(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	out, ended := &output{until: "Still running.", done: make(chan struct{})}, make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{
			Recipients: 3000,
			JSON:       true,
			Dir:        t.TempDir(),
			Listen:     "127.0.0.1:0",
			Out:        out,
			Err:        io.Discard,
		})
	}()
	defer func() { stop(); require.NoError(t, <-ended) }()
	select {
	case <-out.done:
	case err := <-ended:
		ended <- err
		t.Fatal("the demo ended: ", err)
	}
	text := out.String()
	page := pageOf(t, find(t, `dashboard +(\S+)`, text), find(t, `its page: (\S+)`, text))
	printed, err := strconv.ParseFloat(find(t, `failover +(\d+) ms`, text), 64)
	require.NoError(t, err)
	shown, unit := find(t, `the first within ([\d.]+) m?s`, page), find(t, `the first within [\d.]+ (m?s)`, page)
	took, err := time.ParseDuration(shown + unit)
	require.NoError(t, err)
	step := time.Millisecond // a page cuts what is less off
	if unit == "s" {
		step = time.Second
		if strings.Contains(shown, ".") {
			step /= 10
		}
	}
	require.InDelta(t, printed, took.Milliseconds(), float64(step.Milliseconds()+1))
}

// pageOf logs in by a link and returns a page.
func pageOf(t *testing.T, link, page string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	browser := &http.Client{Jar: jar, Transport: transport}
	u, err := url.Parse(link)
	require.NoError(t, err)
	form := strings.NewReader(u.RawQuery)
	u.RawQuery = ""
	login, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u.String(), form)
	require.NoError(t, err)
	login.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	login.Header.Set("Sec-Fetch-Site", "same-origin")
	answer, err := browser.Do(login)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	get, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page, nil)
	require.NoError(t, err)
	answer, err = browser.Do(get)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	return string(text)
}
