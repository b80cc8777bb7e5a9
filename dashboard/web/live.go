package web

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/service"
)

// LiveEvery is the interval between reads of a source.
const LiveEvery = time.Second

const (
	liveBeat  = time.Second      // interval between beats, by which a page knows that its connection works
	liveCheck = 10 * time.Second // interval between session checks
	liveWrite = 10 * time.Second // time limit for one event to a slow browser
)

// Source provides the content of live pages. read is cheap and called every second
// while a page is open; render is called only if the result of read has changed.
type Source struct {
	Read   func(ctx context.Context) (any, error)
	Render func(any) (Parts, error)
}

// Parts maps names of events to the HTML that they replace.
type Parts map[string][]byte

// hub shares one feed among all pages with the same content.
type hub struct {
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // for the feeds, which live as long as the hub
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	feeds map[string]*feed
	pages map[string]int // open live pages, by user
	open  int            // of all users
}

// Each live page may read the store once a second.
const (
	livePages    = 50   // that a user may have open
	allLivePages = 1000 // that all users together may

	liveRetry = 60 // seconds after which one too many may be opened again
)

// feed reads one source for its watchers.
type feed struct {
	watchers int
	stop     context.CancelFunc

	mu      sync.Mutex
	now     map[string]piece
	version int
	changed chan struct{} // closed and replaced by every change
}

// piece is the newest content of an event and its version.
type piece struct {
	data    []byte
	version int
}

func newHub(log *slog.Logger) *hub {
	h := &hub{log: log, feeds: map[string]*feed{}, pages: map[string]int{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

func (h *hub) close() {
	h.cancel()
	h.wg.Wait()
}

// enter counts a page of a user until leave is called. It returns an error if the user has too many, or all users have.
func (h *hub) enter(user string) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.pages[user] >= livePages:
		return nil, service.Fail(service.Unavailable, "too_many_pages",
			"You have %d pages open that update by themselves. Close some, or reload this one to see changes.", livePages).
			After(liveRetry)
	case h.open >= allLivePages:
		return nil, service.Fail(service.Unavailable, "too_many_pages",
			"%d pages that update by themselves are open. Reload this one to see changes.", allLivePages).
			After(liveRetry)
	}
	h.pages[user]++
	h.open++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open--
		if h.pages[user]--; h.pages[user] == 0 {
			delete(h.pages, user)
		}
	}, nil
}

// join returns the feed of a key and a function that leaves it. The first join
// starts the feed, the last leave stops it.
func (h *hub) join(key string, open func() Source) (*feed, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.feeds[key]
	if f == nil {
		f = &feed{now: map[string]piece{}, changed: make(chan struct{})}
		var ctx context.Context
		ctx, f.stop = context.WithCancel(h.ctx)
		h.feeds[key] = f
		src := open()
		h.wg.Go(func() { f.run(ctx, src, h.log) })
	}
	f.watchers++
	return f, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if f.watchers--; f.watchers == 0 {
			f.stop()
			delete(h.feeds, key)
		}
	}
}

// unreadable is the notice on pages while their source cannot be read.
const unreadable = `<p class="notice bad">This page is out of date: the store cannot be read at the moment. ` +
	`It updates by itself.</p>`

// run reads the source until ctx ends.
func (f *feed) run(ctx context.Context, src Source, log *slog.Logger) {
	t := time.NewTicker(LiveEvery)
	defer t.Stop()
	var last any
	for {
		now, err := src.Read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Debug("live page not read", "err", err)
			f.set(Parts{"trouble": []byte(unreadable)})
		case !reflect.DeepEqual(now, last):
			ps, err := src.Render(now)
			if err != nil {
				log.Error("live page not rendered", "err", err)
				return
			}
			ps["trouble"] = nil
			f.set(ps)
			last = now
		default:
			f.set(Parts{"trouble": nil})
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// set stores the parts that have changed and wakes the watchers.
func (f *feed) set(ps Parts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	woken := false
	for name, data := range ps {
		if old, ok := f.now[name]; ok && bytes.Equal(old.data, data) {
			continue
		}
		if !woken {
			woken = true
			f.version++
			close(f.changed)
			f.changed = make(chan struct{})
		}
		f.now[name] = piece{data: data, version: f.version}
	}
}

// since returns the events after a version, the current version, and a channel that
// is closed on the next change.
func (f *feed) since(version int) (out []byte, now int, more <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.now)) {
		if p := f.now[name]; p.version > version {
			out = appendEvent(out, name, p.data)
		}
	}
	return out, f.version, f.changed
}

// appendEvent appends a server-sent event.
func appendEvent(b []byte, name string, data []byte) []byte {
	b = append(append(append(b, "event: "...), name...), '\n')
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			b = append(append(append(b, "data: "...), line...), '\n')
		}
	}
	if len(data) == 0 {
		b = append(b, "data:\n"...)
	}
	return append(b, '\n')
}

// Stream sends the feed of a key to a page until the browser disconnects, its
// session ends or the server stops.
func (f *Frame) Stream(w http.ResponseWriter, r *http.Request, v *Visitor, key string, open func() Source) error {
	exit, err := f.live.enter(v.User)
	if err != nil {
		return err
	}
	defer exit()
	rc := http.NewResponseController(w)
	if err := rc.SetWriteDeadline(time.Now().Add(liveWrite)); err != nil {
		return service.Fail(service.Unsupported, "no_stream", "This connection does not support streaming.").Because(err)
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // or nginx would buffer it
	send := func(b []byte) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(liveWrite)) // it was possible before
		_, err := w.Write(b)
		return err == nil && rc.Flush() == nil
	}
	alive := appendEvent(nil, "beat", nil)
	if !send(alive) {
		return nil
	}
	content, leave := f.live.join(key, open)
	defer leave()
	beat, check := time.NewTicker(liveBeat), time.NewTicker(liveCheck)
	defer beat.Stop()
	defer check.Stop()
	version := 0
	for {
		out, now, more := content.since(version)
		version = now
		if len(out) > 0 {
			if ended, err := f.People.SessionEnded(r.Context(), v.User, v.UpTo); err != nil || ended || !send(out) {
				return nil
			}
		}
		select {
		case <-more:
		case <-beat.C:
			if !send(alive) {
				return nil
			}
		case <-check.C:
			if _, _, err := f.peek(r); err != nil {
				return nil // the page reconnects and is sent to the login
			}
		case <-r.Context().Done():
			return nil
		case <-f.live.ctx.Done():
			return nil
		}
	}
}

// EventsKey returns the key of a feed: pages with the same key share it.
func EventsKey(parts ...any) string { return fmt.Sprint(parts...) }
