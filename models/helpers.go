package models

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Clip returns s cut to MaxText bytes. It never cuts a character in two.
func Clip(s string) string {
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText], "")
}

// EarlierOf returns the earlier of two times.
func EarlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// LaterOf returns the later of two times.
func LaterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Every yields the time after each pause until ctx ends.
func Every(ctx context.Context, pause time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(pause)
		defer t.Stop()
		for {
			select {
			case now := <-t.C:
				if ctx.Err() != nil || !yield(now) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// DecodeStored decodes a stored value of JSON. Errors: ErrNewer (it has a member that this
// version of the program does not know, and must not ignore), ErrInvalid.
func DecodeStored(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = fmt.Errorf("more than one value")
		}
	}
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unknown field"): // the package has no type for it
		return fmt.Errorf("%w: %w", ErrNewer, err)
	}
	return fmt.Errorf("%w: stored value: %w", ErrInvalid, err)
}

// ReadDocument reads a document whose value is JSON, and its version. Without a document the value is zero and the
// version 0. Errors: ErrNewer, ErrDamaged.
func ReadDocument[T any](ctx context.Context, s DocumentStore, owner, kind, key string) (v T, version int, err error) {
	d, err := s.Document(ctx, owner, kind, key)
	if errors.Is(err, ErrNotFound) {
		return v, 0, nil
	}
	if err == nil {
		err = d.Decode(&v)
	}
	return v, d.Version, err
}

// Decode decodes the value of a document, which is JSON. Errors: ErrNewer, ErrDamaged.
func (d *Document) Decode(v any) error {
	err := DecodeStored(d.Value, v)
	if errors.Is(err, ErrInvalid) {
		return fmt.Errorf("%w: document %s: %w", ErrDamaged, d.Key, err)
	}
	return err
}

// changeAttempts is how often a change is tried for which others race.
const changeAttempts = 20

// ChangeDocument changes a document whose value is JSON by compare-and-set, and returns the new value and version. It
// starts again if another caller changed the document meanwhile. do changes the value. Without a document the value is
// zero and the version 0. If do changes nothing, nothing is stored. Errors: those of do and of the store; ErrConflict
// means that others change the document all the time.
func ChangeDocument[T any](
	ctx context.Context, s DocumentStore, owner, kind, key string, do func(v *T, version int) error,
) (v T, version int, err error) {
	for range changeAttempts {
		if v, version, err = ReadDocument[T](ctx, s, owner, kind, key); err != nil {
			return v, version, err
		}
		before, err := json.Marshal(v)
		if err != nil {
			return v, version, err
		}
		if err := do(&v, version); err != nil {
			return v, version, err
		}
		after, err := json.Marshal(v)
		if err != nil || bytes.Equal(before, after) {
			return v, version, err
		}
		err = s.PutDocument(ctx, owner, kind, Document{Key: key, Version: version + 1, Value: after})
		if !errors.Is(err, ErrConflict) {
			return v, version + 1, err
		}
	}
	return v, version, fmt.Errorf("%s %s: %w", kind, key, ErrConflict)
}

// OneLine returns s for a header field: each run of line breaks and control characters,
// including U+0085, U+2028 and U+2029, becomes one space, and invalid UTF-8 becomes
// U+FFFD.
func OneLine(s string) string {
	if isPlainLine(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	gap := false
	for _, r := range s {
		if BreaksLine(r) {
			gap = true
			continue
		}
		if gap {
			b.WriteByte(' ')
			gap = false
		}
		b.WriteRune(r)
	}
	if gap {
		b.WriteByte(' ')
	}
	return b.String()
}

// BreaksLine reports whether a character must not be in a header field.
func BreaksLine(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }

func isPlainLine(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return c >= 0x80 && utf8.ValidString(s) && strings.IndexFunc(s, BreaksLine) < 0
		}
	}
	return true
}
