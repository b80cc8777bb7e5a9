package cassandra

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
)

// The requests of the CQL protocol, version 4, that write, and the flag that says that
// they have a timestamp of the client.
const (
	opQuery, opExecute, opBatch = 0x07, 0x0a, 0x0d

	flagTimestamp = 0x20
)

// frameReader reads the parts of a request.
type frameReader struct {
	t *testing.T
	b []byte
}

func (r *frameReader) next(n int) []byte {
	r.t.Helper()
	require.GreaterOrEqual(r.t, len(r.b), n, "a request is cut off")
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *frameReader) byte() byte    { return r.next(1)[0] }
func (r *frameReader) short() int    { return int(binary.BigEndian.Uint16(r.next(2))) }
func (r *frameReader) int() int      { return int(int32(binary.BigEndian.Uint32(r.next(4)))) }
func (r *frameReader) value()        { r.next(max(r.int(), 0)) }
func (r *frameReader) longText()     { r.next(r.int()) }
func (r *frameReader) shortBytes()   { r.next(r.short()) }
func (r *frameReader) consistency()  { r.short() }
func (r *frameReader) flagged() bool { return r.byte()&flagTimestamp != 0 }

// stamped counts the requests of a connection by kind, and those with a timestamp of the
// client.
func stamped(t *testing.T, sent []byte) (all, with map[byte]int) {
	t.Helper()
	all, with = map[byte]int{}, map[byte]int{}
	for frames := (frameReader{t, sent}); len(frames.b) > 0; {
		head := frames.next(9)
		require.EqualValues(t, 4, head[0], "version of the protocol")
		op := head[4]
		r := frameReader{t, frames.next(int(binary.BigEndian.Uint32(head[5:])))}
		switch op {
		case opQuery:
			r.longText()
			r.consistency()
		case opExecute:
			r.shortBytes()
			r.consistency()
		case opBatch:
			r.byte()
			for range r.short() {
				if r.byte() == 0 {
					r.longText()
				} else {
					r.shortBytes()
				}
				for range r.short() {
					r.value()
				}
			}
			r.consistency()
		default:
			continue
		}
		all[op]++
		if r.flagged() {
			with[op]++
		}
	}
	return all, with
}

// The driver must send no timestamp of this process: neither with single statements,
// prepared or not, nor with batches, nor with compare-and-set.
func TestNoClientTimestamps(t *testing.T) {
	c := sharedConfig(t)
	open(t, c)
	p := newProxy(t)
	p.record()
	c.Hosts, c.Migrate = []string{p.addr}, false
	s := open(t, c)
	ctx := t.Context()
	user := models.NewUserID()
	for i := range 3 {
		mail, first := storetest.SampleBatch(1)
		require.NoError(t, s.PutBatch(ctx, mail, first))
		require.NoError(t, s.Append(ctx, mail.ID, storetest.SampleEntry(1)))
		require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: mail.ID, Fact: storetest.SampleFact(1)},
			models.ChunkFact{Chunk: mail.ID, Fact: storetest.SampleFact(2)}))
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: []byte("{}")}}}
		require.NoError(t, s.PutInbox(ctx, in))
		require.NoError(t, s.InboxDone(ctx, in.ID))
		require.NoError(t, s.PutTransient(ctx, "kind", user, []byte{byte(i)}, time.Hour))
		require.NoError(t, s.PutTransient(ctx, "kind", user, nil, 0))
		require.NoError(t, s.PutAddressIndex(ctx, user, models.NewAddressIndex(mail.ID, first.Recipients)))
		require.NoError(t, s.DropAddressIndexes(ctx, user, time.Now()))
		require.NoError(t, s.SetAgendaMark(ctx, 0, time.Now().Add(-time.Hour)))
		require.NoError(t, engineOf(s).exec(ctx, plain, `INSERT INTO row_locks (name, holder) VALUES ('x', 'x')`), "not prepared")
	}
	require.NoError(t, s.Close())
	p.stop()
	sum := map[byte]int{}
	for _, sent := range p.recorded() {
		all, with := stamped(t, sent)
		require.Empty(t, with, "requests with a timestamp of this process, of %v", all)
		for op, n := range all {
			sum[op] += n
		}
	}
	for _, op := range []byte{opQuery, opExecute, opBatch} {
		require.Positive(t, sum[op], "kind %#x of %v", op, sum)
	}
}
