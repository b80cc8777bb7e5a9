// Package mailbox reads mailboxes to which programs send mail: folders in the format Maildir, and the inbox of a user at
// an IMAP server. A mail stays unread until it was taken, so that none is lost if the reader is killed.
package mailbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// groupSize is how many mails are read together.
const groupSize = 16

// A Mail is an unread mail.
type Mail struct {
	Raw    []byte // its beginning
	Remove bool   // set by the taker: the mail is removed. Otherwise it is marked as read
}

// A Mailbox has mail.
type Mailbox interface {
	// Each calls take with groups of unread mails, and with about limit mails at most. Of each mail it reads the first
	// size bytes. After take has returned nil the mails of its group are removed, or marked as read. An error of take
	// ends Each. A mail that cannot be read does not keep others from being taken.
	Each(ctx context.Context, limit int, size int64, take func(group []Mail) error) error
	// Check returns why the mailbox cannot be read, or nil.
	Check(ctx context.Context) error
}

// A Maildir is the path of a folder in the format of Maildir (https://cr.yp.to/proto/maildir.html).
type Maildir string

var _ Mailbox = Maildir("")

// The folders of a Maildir, and what the name of a mail in cur has at its end if it was read.
const (
	unread   = "new"
	seen     = "cur"
	readMark = ":2,S"
)

// Check implements Mailbox. It writes and removes a file, because a mail that was read is moved.
func (m Maildir) Check(context.Context) error {
	for _, name := range []string{unread, seen} {
		f, err := os.CreateTemp(filepath.Join(string(m), name), ".check-*")
		if err != nil {
			return err
		}
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Each implements Mailbox.
func (m Maildir) Each(ctx context.Context, limit int, size int64, take func(group []Mail) error) error {
	folder, err := os.Open(filepath.Join(string(m), unread))
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	var unreadable error
	for taken := 0; taken < limit; {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := folder.Readdirnames(groupSize)
		if errors.Is(err, io.EOF) {
			return unreadable
		} else if err != nil {
			return err
		}
		var group []Mail
		var paths []string
		for _, name := range names {
			raw, err := beginning(filepath.Join(string(m), unread, name), size)
			if err != nil {
				unreadable = err
			} else if raw != nil {
				group, paths = append(group, Mail{Raw: raw}), append(paths, name)
			}
		}
		if len(group) == 0 {
			continue
		}
		if err := take(group); err != nil {
			return err
		}
		for i, name := range paths {
			if err := m.done(name, group[i].Remove); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		taken += len(group)
	}
	return unreadable
}

// done removes a mail, or marks it as read.
func (m Maildir) done(name string, remove bool) error {
	path := filepath.Join(string(m), unread, name)
	if remove {
		return os.Remove(path)
	}
	return os.Rename(path, filepath.Join(string(m), seen, name+readMark))
}

// beginning returns the first bytes of a mail, or nil if the file is gone or is none.
func beginning(path string, size int64) ([]byte, error) {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || filepath.Base(path)[0] == '.' {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, size))
	if raw == nil {
		raw = []byte{}
	}
	return raw, err
}
