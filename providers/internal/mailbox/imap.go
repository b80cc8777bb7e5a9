package mailbox

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"github.com/emersion/go-imap/v2"
	"github.com/emersion/go-imap/v2/imapclient"

	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
)

// window is how many mails of an inbox are searched at once: an answer is in memory.
const window = 1000

// An IMAP is the inbox of a user at an IMAP server.
type IMAP struct {
	Address        string // host:port
	Security       string // settings.TLS, settings.StartTLS or settings.NoTLS
	TLS            *tls.Config
	User, Password string
	Tokens         *oauth.Source // access tokens in place of the password; nil: none
}

var _ Mailbox = (*IMAP)(nil)

// Check implements Mailbox.
func (m *IMAP) Check(ctx context.Context) error {
	_, _, stop, err := m.open(ctx)
	if err == nil {
		stop()
	}
	return err
}

// open logs in and selects the inbox, which has some mails. The connection ends with ctx, or with stop.
func (m *IMAP) open(ctx context.Context) (c *imapclient.Client, mails uint32, stop func(), err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", m.Address)
	if err != nil {
		return nil, 0, nil, err
	}
	ended := context.AfterFunc(ctx, func() { _ = conn.Close() })
	stop = func() {
		ended()
		_ = c.Close()
	}
	switch m.Security {
	case settings.TLS:
		c = imapclient.New(tls.Client(conn, m.TLS), nil)
	case settings.StartTLS:
		if c, err = imapclient.NewStartTLS(conn, &imapclient.Options{TLSConfig: m.TLS}); err != nil {
			ended()
			return nil, 0, nil, err
		}
	default:
		c = imapclient.New(conn, nil)
	}
	if err = c.WaitGreeting(); err == nil {
		err = m.logIn(ctx, c)
	}
	if err != nil {
		stop()
		return nil, 0, nil, err
	}
	inbox, err := c.Select("INBOX", nil).Wait()
	if err != nil {
		stop()
		return nil, 0, nil, err
	}
	return c, inbox.NumMessages, stop, nil
}

// logIn logs in with the password or an access token.
func (m *IMAP) logIn(ctx context.Context, c *imapclient.Client) error {
	if m.Tokens == nil {
		return c.Login(m.User, m.Password).Wait()
	}
	return m.Tokens.Use(ctx, func(token string) (bool, error) {
		err := c.Authenticate(oauth.Client(m.User, token))
		var no *imap.Error
		return errors.As(err, &no), err
	})
}

// Each implements Mailbox. It begins with the newest mails, so that those that it removes change the numbers of none that
// is searched later.
func (m *IMAP) Each(ctx context.Context, limit int, size int64, take func(group []Mail) error) error {
	c, mails, stop, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	box := inbox{c, size, take, nil}
	for taken := 0; mails > 0 && taken < limit; {
		from := uint32(1)
		if mails > window {
			from = mails - window + 1
		}
		found, err := c.UIDSearch(&imap.SearchCriteria{
			SeqNum:  []imap.SeqSet{{imap.SeqRange{Start: from, Stop: mails}}},
			NotFlag: []imap.Flag{imap.FlagSeen, imap.FlagDeleted},
		}, nil).Wait()
		if err != nil {
			return err
		}
		for uids := found.AllUIDs(); len(uids) > 0 && taken < limit; {
			n := min(groupSize, len(uids))
			if err := box.group(uids[:n]); err != nil {
				return err
			}
			uids, taken = uids[n:], taken+n
		}
		mails = from - 1
	}
	return box.unreadable
}

// inbox is a selected inbox.
type inbox struct {
	*imapclient.Client
	size       int64
	take       func(group []Mail) error
	unreadable error // why a mail was left out
}

// group has a group of mails taken.
func (b *inbox) group(uids []imap.UID) error {
	group, found, err := b.fetch(uids)
	switch {
	case b.State() != imap.ConnStateSelected:
		return errors.Join(err, errClosed)
	case err != nil && len(uids) > 1: // one of them cannot be read
		for i := range uids {
			if err := b.group(uids[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	case len(group) == 0: // it cannot be read, or another client has removed them
		b.unreadable = errors.Join(b.unreadable, err)
		return nil
	}
	if err := b.take(group); err != nil {
		return err
	}
	var read, remove imap.UIDSet
	for i := range group {
		if group[i].Remove {
			remove.AddNum(found[i])
		} else {
			read.AddNum(found[i])
		}
	}
	return errors.Join(b.mark(read, imap.FlagSeen), b.mark(remove, imap.FlagSeen, imap.FlagDeleted), b.remove(remove))
}

var errClosed = errors.New("the IMAP server has closed the connection")

// fetch returns the beginnings of mails that are still there, and their UIDs.
func (b *inbox) fetch(uids []imap.UID) (group []Mail, found []imap.UID, err error) {
	all := b.Fetch(imap.UIDSetNum(uids...), &imap.FetchOptions{UID: true, BodySection: []*imap.FetchItemBodySection{
		{Peek: true, Partial: &imap.SectionPartial{Size: b.size}},
	}})
	for m := all.Next(); m != nil; m = all.Next() {
		var uid imap.UID
		var raw []byte
		for item := m.Next(); item != nil; item = m.Next() {
			switch item := item.(type) {
			case imapclient.FetchItemDataUID:
				uid = item.UID
			case imapclient.FetchItemDataBodySection:
				if item.Literal != nil {
					raw, err = io.ReadAll(io.LimitReader(item.Literal, b.size))
				}
			}
		}
		if uid != 0 && raw != nil && err == nil {
			group, found = append(group, Mail{Raw: raw}), append(found, uid)
		}
	}
	return group, found, errors.Join(err, all.Close())
}

// mark adds flags to mails.
func (b *inbox) mark(uids imap.UIDSet, flags ...imap.Flag) error {
	if len(uids) == 0 {
		return nil
	}
	return b.Store(uids, &imap.StoreFlags{Op: imap.StoreFlagsAdd, Silent: true, Flags: flags}, nil).Close()
}

// remove removes mails that are marked as deleted. Without UIDPLUS it leaves them so: EXPUNGE would also remove those that
// another client has marked.
func (b *inbox) remove(uids imap.UIDSet) error {
	if caps := b.Caps(); len(uids) == 0 || !caps.Has(imap.CapUIDPlus) {
		return nil
	}
	return b.UIDExpunge(uids).Close()
}
