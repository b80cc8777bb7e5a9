package models

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoles: recipient 1 is in To, the next ones are in Cc, and the last ones in Bcc. All read the values of the first.
func TestRoles(t *testing.T) {
	t.Parallel()
	b := Batch{Envelope: &Envelope{CC: 2, BCC: 1}, Recipients: 4}
	rs := []Recipient{
		{Email: "ann@x.test", Name: "Ann", Vars: map[string]string{"a": "1"}}, {Email: "bob@x.test"}, {Email: "eve@x.test"},
		{Email: "lou@x.test"},
	}
	for together, want := range map[bool]string{
		true:  "to ann@x.test 1 Ann, bcc lou@x.test 1 Ann, ",
		false: " ann@x.test 1 Ann,  lou@x.test 1 Ann, ",
	} {
		got := ""
		for _, r := range b.CallRecipients(ID{}, SetOf(1, 4), rs, together) {
			name, _ := r.Value("name")
			got += fmt.Sprint(r.Role, " ", r.Email, " ", r.Vars["a"], " ", name, ", ")
		}
		require.Equal(t, want, got)
	}
	require.Equal(t, []Role{To, CC, CC, BCC}, []Role{b.RoleOf(1), b.RoleOf(2), b.RoleOf(3), b.RoleOf(4)})
	require.Empty(t, (&Batch{}).RoleOf(1))
	require.Equal(t, "eve@x.test", (&Batch{}).Values(3, rs).Email)
}

// TestRecipientOfEvent: an event about one mail to several is about the address that it names, in any case. An event
// whose address is unknown is about none, but for the only address that was erased.
func TestRecipientOfEvent(t *testing.T) {
	t.Parallel()
	rs := []Recipient{{Email: "ann@x.test"}, {Email: "bob@x.test"}, {}, {}}
	e := Entry{Together: true, Recipients: SetOf(1, 2, 3)}
	require.Equal(t, 2, e.RecipientOf(1, "BOB@x.test", rs))
	require.Equal(t, 3, e.RecipientOf(1, "gone@x.test", rs))
	e.Recipients = SetOf(1, 2)
	require.Equal(t, 0, e.RecipientOf(1, "gone@x.test", rs))
	require.Equal(t, 0, e.RecipientOf(1, "", rs))
	e.Recipients = SetTo(4)
	require.Equal(t, 0, e.RecipientOf(1, "gone@x.test", rs), "there are two")
	require.Equal(t, 0, e.RecipientOf(1, "gone@x.test", nil))
	e.Together = false
	require.Equal(t, 1, e.RecipientOf(1, "bob@x.test", rs), "each has a mail of its own")
}

// TestRecipientOfEventOfChunk: an event that names only its chunk is about the recipient of its attempt with its
// address. If there is none or more than one, it is about none, even if an address was erased.
func TestRecipientOfEventOfChunk(t *testing.T) {
	t.Parallel()
	rs := []Recipient{{Email: "ann@x.test"}, {Email: "bob@x.test"}, {Email: "Ann@x.test"}, {}}
	for _, c := range []struct {
		address    string
		recipients Set
		want       int
	}{
		{"BOB@x.test", SetTo(4), 2},
		{"ann@x.test", SetTo(4), 0},
		{"ann@x.test", SetOf(2, 3), 3},
		{"bob@x.test", SetOf(1, 3), 0},
		{"gone@x.test", SetTo(4), 0},
		{"gone@x.test", SetOf(4), 0},
		{"", SetTo(4), 0},
		{"ann@x.test", SetOf(1, 5), 0},
	} {
		e := Entry{Recipients: c.recipients}
		require.True(t, e.ByAddress(0))
		require.Equal(t, c.want, e.RecipientOf(0, c.address, rs), "%s of %s", c.address, c.recipients)
	}
}

// TestTakenTogether: an event about one address shows that a provider has the one mail to all, also after another
// answer. It shows nothing about mail that each address has of its own.
func TestTakenTogether(t *testing.T) {
	t.Parallel()
	for _, class := range []Class{Unknown, Throttled, Accepted} {
		for _, one := range []bool{true, false} {
			e := Entry{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetOf(1, 2), Together: one}
			answer := Fact{Key: OutcomeKey(1), Outcome: &Outcome{
				Attempt: 1,
				Parts:   []Part{{Class: class, Recipients: SetOf(1, 2)}},
			}}
			event := Fact{Key: "e", Events: []Event{{ID: "1", Attempt: 1, Provider: "sg", Recipient: 2, Kind: Deferred}}}
			before := Resolve(2, []Entry{e}, []Fact{answer})
			require.Equal(t, class == Accepted, before.Taken())
			require.Nil(t, before.TakenTogether(1))
			after := Resolve(2, []Entry{e}, []Fact{answer, event})
			require.True(t, after.Taken())
			require.Equal(t, one && class != Accepted, after.TakenTogether(1) != nil, "%s %v", class, one)
			require.Nil(t, after.TakenTogether(2))
		}
	}
}
