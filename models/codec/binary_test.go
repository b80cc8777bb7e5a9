package codec

import (
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
)

var (
	someTime = rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "zero") {
			return time.Time{}
		}
		return time.Unix(
			rapid.Int64Range(-1<<35, 1<<37).Draw(t, "seconds"),
			rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds"),
		).UTC()
	})
	someSet = rapid.Custom(func(t *rapid.T) (s models.Set) {
		for range rapid.IntRange(0, 5).Draw(t, "runs") {
			from := rapid.IntRange(1, models.MaxChunkRecipients).Draw(t, "from")
			for n := from; n <= min(models.MaxChunkRecipients, from+rapid.IntRange(0, 300).Draw(t, "more")); n++ {
				s.Add(n)
			}
		}
		return s
	})
	someWord = rapid.OneOf(rapid.SampledFrom([]string{"", "sg", "mg", "delivered"}), rapid.String())
	someInt  = rapid.OneOf(rapid.IntRange(0, 1000), rapid.Int())

	someEntry = rapid.Custom(func(t *rapid.T) models.Entry {
		e := models.Entry{
			Number:     someInt.Draw(t, "number"),
			Kind:       rapid.SampledFrom([]models.EntryKind{models.Attempt, models.Ending}).Draw(t, "kind"),
			At:         someTime.Draw(t, "at"),
			Recipients: someSet.Draw(t, "recipients"),
			Provider: someWord.Draw(
				t,
				"provider",
			),
			Worker:   someWord.Draw(t, "worker"),
			StartBy:  someTime.Draw(t, "start by"),
			CallEnds: someTime.Draw(t, "call ends"),
			Retry: someInt.Draw(
				t,
				"retry",
			),
			Split:     someInt.Draw(t, "split"),
			MayDouble: rapid.Bool().Draw(t, "may double"),
			Together:  rapid.Bool().Draw(t, "together"),
			Because:   rapid.String().Draw(t, "because"),
			Reason: models.Reason(
				someWord.Draw(t, "reason"),
			),
			Detail:  rapid.String().Draw(t, "detail"),
			Command: someInt.Draw(t, "order"),
		}
		copy(e.Token[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "token"))
		return e
	})
	somePart = rapid.Custom(func(t *rapid.T) models.Part {
		return models.Part{
			Class:      rapid.SampledFrom(models.Classes).Draw(t, "class"),
			Recipients: someSet.Draw(t, "recipients"),
			Reason:     models.Reason(someWord.Draw(t, "reason")),
			Status:     someInt.Draw(t, "status"),
			Text: rapid.String().Draw(
				t,
				"text",
			),
			MessageID: rapid.String().Draw(t, "message"),
			RetryAt:   someTime.Draw(t, "retry at"),
			Final:     rapid.Bool().Draw(t, "final"),
		}
	})
	someEvent = rapid.Custom(func(t *rapid.T) models.Event {
		return models.Event{
			ID:          rapid.String().Draw(t, "id"),
			Recipient:   someInt.Draw(t, "recipient"),
			Attempt:     someInt.Draw(t, "attempt"),
			Provider:    someWord.Draw(t, "provider"),
			Kind:        rapid.SampledFrom(models.EventKinds).Draw(t, "kind"),
			At:          someTime.Draw(t, "at"),
			Reason:      models.Reason(someWord.Draw(t, "reason")),
			BounceClass: someWord.Draw(t, "bounce class"),
			Status: someInt.Draw(
				t,
				"status",
			),
			Enhanced:      someWord.Draw(t, "enhanced"),
			Text:          someWord.Draw(t, "text"),
			Async:         rapid.Bool().Draw(t, "async"),
			Guess:         rapid.Bool().Draw(t, "guess"),
			ParseRevision: rapid.Int64().Draw(t, "reading"),
		}
	})
	someFact = rapid.Custom(func(t *rapid.T) models.Fact {
		f := models.Fact{Key: "k"}
		if rapid.Bool().Draw(t, "outcome") {
			f.Outcome = &models.Outcome{
				Attempt: someInt.Draw(t, "attempt"),
				At:      someTime.Draw(t, "at"),
				Took:    time.Duration(rapid.Int64().Draw(t, "took")),
			}
			if parts := rapid.SliceOfN(somePart, 0, 4).Draw(t, "parts"); len(parts) > 0 {
				f.Outcome.Parts = parts
			}
		}
		if events := rapid.SliceOfN(someEvent, 0, 30).Draw(t, "events"); len(events) > 0 {
			f.Events = events
		}
		return f
	})
)

// TestBinaryForms checks that a stored form is decoded completely or refused, and that
// equal values have equal forms.
func TestBinaryForms(t *testing.T) {
	t.Parallel()
	cutOff := func(t *rapid.T, raw []byte, decode func([]byte) error) {
		t.Helper()
		require.ErrorIs(t, decode(raw[:rapid.IntRange(0, len(raw)-1).Draw(t, "cut")]), models.ErrInvalid)
		if raw[0] == formBinary { // a compressed form may have more after its end
			require.ErrorIs(t, decode(append(raw, 0)), models.ErrInvalid)
		}
	}
	t.Run("entries", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			e := someEntry.Draw(t, "entry")
			got, err := DecodeEntry(EncodeEntry(&e))
			require.NoError(t, err)
			require.Equal(t, e, got)
			require.Equal(t, EncodeEntry(&e), EncodeEntry(&got))
			cutOff(t, EncodeEntry(&e), func(raw []byte) error { _, err := DecodeEntry(raw); return err })
		})
	})
	t.Run("facts", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			f := someFact.Draw(t, "fact")
			got, err := DecodeFact("k", EncodeFact(&f))
			require.NoError(t, err)
			require.Equal(t, f, got)
			require.Equal(t, EncodeFact(&f), EncodeFact(&got))
			cutOff(t, EncodeFact(&f), func(raw []byte) error { _, err := DecodeFact("k", raw); return err })
		})
	})
}

// TestBinaryFormsNeverChange checks that forms which were stored can still be read. A new
// form needs another letter.
func TestBinaryFormsNeverChange(t *testing.T) {
	t.Parallel()
	e := models.Entry{
		Number:     3,
		Token:      models.Token{1, 2, 15: 16},
		Kind:       models.Attempt,
		At:         t0,
		Recipients: models.SetOf(1, 2, 9),
		Provider:   "sg",
		Worker:     "w",
		StartBy:    t0.Add(time.Second),
		CallEnds:   t0.Add(time.Minute),
		Retry:      2,
		Split:      1,
		MayDouble:  true,
		Because:    "why",
		Reason:     models.Expired,
		Detail:     "d",
		Command:    7,
	}
	f := models.Fact{
		Key: "k",
		Outcome: &models.Outcome{
			Attempt: 3,
			At:      t0,
			Took:    time.Millisecond,
			Parts: []models.Part{
				{Class: models.Throttled, Recipients: models.SetTo(1000), Reason: models.RateLimited, Status: 429,
					Text: "slow", MessageID: "m", RetryAt: t0.Add(time.Hour), Final: true},
			},
		},
		Events: []models.Event{
			{ID: "1", Recipient: 7, Attempt: 3, Provider: "sg", Kind: models.Bounced, At: t0.Add(time.Nanosecond),
				Reason: models.MailboxInvalid, BounceClass: "bc", Status: 550, Enhanced: "5.1.1", Text: "no", Async: true,
				ParseRevision: 5},
			{ID: "2", Recipient: 8, Attempt: 3, Provider: "sg", Kind: models.Delivered, At: t0},
		},
	}
	require.Equal(t, entryForm, hex.EncodeToString(EncodeEntry(&e)))
	require.Equal(t, factForm, hex.EncodeToString(EncodeFact(&f)))
}

// BenchmarkRecord decodes the record of a chunk with a hundred calls and a thousand
// events that came one by one.
func BenchmarkRecord(b *testing.B) {
	at := t0
	var entries []models.Entry
	var facts []models.Fact
	for n := 1; n <= 100; n++ {
		var who models.Set
		for r := 10*n - 9; r <= 10*n; r++ {
			who.Add(r)
			facts = append(
				facts,
				models.Fact{
					Key: models.EventsKey(models.NewInboxID(at)),
					Events: []models.Event{
						{ID: fmt.Sprintf("some-id-of-a-provider-%d", r), Recipient: r, Attempt: n, Provider: "mg", Kind: models.Delivered,
							At: at, Status: 250, Text: "250 2.0.0 OK queued as 1234567890"},
					},
				},
			)
		}
		entries = append(
			entries,
			models.Entry{
				Number:     n,
				Token:      models.NewToken(),
				Kind:       models.Attempt,
				At:         at,
				Recipients: who,
				Provider:   "mg",
				Worker:     "host-1234",
				StartBy:    at,
				CallEnds:   at,
			},
		)
		facts = append(
			facts,
			models.Fact{
				Key: models.OutcomeKey(n),
				Outcome: &models.Outcome{
					Attempt: n,
					At:      at,
					Took:    time.Second,
					Parts:   []models.Part{{Class: models.Accepted, Recipients: who, Status: 200, MessageID: "<message@id>"}},
				},
			},
		)
	}
	var es, fs [][]byte
	size := 0
	for i := range entries {
		es = append(es, EncodeEntry(&entries[i]))
		size += len(es[i])
	}
	for i := range facts {
		fs = append(fs, EncodeFact(&facts[i]))
		size += len(fs[i])
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, raw := range es {
			if _, err := DecodeEntry(raw); err != nil {
				b.Fatal(err)
			}
		}
		for i, raw := range fs {
			if _, err := DecodeFact(facts[i].Key, raw); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(size), "bytes")
}

const (
	entryForm = "6206010200000000000000000000000000100007617474656d7074cad6b9950d00020101070000027367000177" +
		"070200760004020377687900076578706972656401640e"
	factForm = "620106cad6b9950d0080897a0100097468726f74746c65640101e707000c726174655f6c696d69746564da0600" +
		"04736c6f77016d03a038000201310e06000273670007626f756e6365649f3801000f6d61696c626f785f696e76616c6964" +
		"00026263cc080005352e312e3100026e6f010a0132100604000964656c697665726564000000000b000b0b0000"
)
