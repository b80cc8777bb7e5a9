package drill

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestAddressesAreGivenOnce requires that no two drills get the same address, even if nothing listens there.
func TestAddressesAreGivenOnce(t *testing.T) {
	var a addresses
	for range 300 {
		addr, err := a.next(t.Context())
		require.NoError(t, err)
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	require.Len(t, a.all, 300)
}

// copiesOf reads copies in the order of a text, each as outcome@provider, with ! if it was swallowed and ? if its
// webhooks are withheld.
func copiesOf(text string) (out []simulator.Copy) {
	begin := time.Now()
	for word := range strings.FieldsSeq(text) {
		outcome, provider, _ := strings.Cut(strings.TrimRight(word, "!?"), "@")
		out = append(out, simulator.Copy{
			Outcome:   outcome,
			Account:   provider,
			At:        begin.Add(time.Duration(len(out)) * time.Second),
			Swallowed: strings.HasSuffix(word, "!"),
			Muted:     strings.HasSuffix(word, "?"),
		})
	}
	return out
}

// TestDoubledAndLost distinguishes mail that was sent twice from mail that another provider sent because the first one
// is known not to have delivered it.
func TestDoubledAndLost(t *testing.T) {
	for _, c := range []struct {
		copies        string
		doubled, lost bool
	}{
		{"", false, true},
		{"deliver@sg", false, false},
		{"blocked@sg deliver@mg", false, false},
		{"blocked@sg blocked@mg", false, true},
		{"blocked@sg hardbounce@mg", false, true},
		{"expire@sg open@mg", false, false},
		{"suppressed-bounce@sg deliver@mg", false, false},
		{"blocked@mg? deliver@sg", false, false}, // the provider was queried

		{"deliver@sg deliver@mg", true, false},
		{"deliver@sg silent@mg", true, false},
		{"deliver@sg blocked@mg", true, false}, // delivered, and sent again all the same
		{"deliver@sg hardbounce@mg", true, false},
		{"deliver@sg! deliver@mg", true, false}, // it was unknown that the first was swallowed
		{"blocked@sg! deliver@mg", true, false},
		{"blocked@sg? deliver@mg", false, false},
		{"blocked@ses? deliver@mg", true, false}, // nothing can tell
		{"async@sg deliver@mg", true, false},
		{"async@mg async@sg", true, false},
		{"async@sg blocked@mg", true, false},
		{"hardbounce@sg hardbounce@mg", true, true},
		{"hardbounce@sg deliver@mg", true, false},
		{"invalid@sg deliver@mg", true, false},
		{"suppressed-unsub@sg deliver@mg", true, false},
		{"mailboxfull@sg deliver@mg", true, false},
		{"blocked@sg deliver@sg", true, false}, // the same provider again
		{"blocked@sg blocked@mg deliver@sg", true, false},
		{"blocked@sg deliver@mg open@sg", true, false},
	} {
		copies := copiesOf(c.copies)
		for range 2 {
			var o outcome
			for _, copy := range copies {
				o.add(copy, copy.Account != "ses")
			}
			require.Equal(t, c.doubled, o.doubled(), c.copies)
			require.Equal(t, c.lost, o.lost(), c.copies)
			slices.Reverse(copies) // in whichever order they are counted
		}
	}
}

// TestHiddenOutcomes distinguishes copies whose outcome Safedelivr can know from those that a fault hides.
func TestHiddenOutcomes(t *testing.T) {
	for copies, want := range map[string][2]int{ // final, hidden
		"deliver@sg":             {1, 0},
		"hardbounce@mg":          {1, 0},
		"async@mg":               {1, 0},
		"deliver@sg!":            {0, 1},
		"deliver@mg!":            {0, 1},
		"deliver@sg?":            {1, 0},
		"deliver@mg?":            {1, 0},
		"deliver@ses?":           {0, 1},
		"blocked@ses?":           {0, 1},
		"silent@sg":              {1, 0},
		"silent@mg":              {1, 0},
		"blocked@sg":             {0, 0},
		"blocked@sg deliver@mg?": {1, 0},
	} {
		var o outcome
		for _, c := range copiesOf(copies) {
			o.add(c, c.Account != "ses")
		}
		require.Equal(t, want, [2]int{o.final, o.hidden}, copies)
	}
}

// TestStandstills finds the times in which the machine stood still by a part of them.
func TestStandstills(t *testing.T) {
	var s standstills
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	require.False(t, s.any())
	s.add(at(10), at(13))
	require.True(t, s.any())
	for span, want := range map[[2]int]bool{
		{1, 10}: false, {1, 11}: true, {1, 20}: true, {11, 12}: true, {12, 20}: true, {13, 20}: false,
	} {
		require.Equal(t, want, s.within(at(span[0]), at(span[1])), span)
	}
	s.add(at(20), at(21))
	require.False(t, s.within(at(20), at(21)), "it is too short for workers to have stood still with certainty")
	for span, want := range map[[2]int]int{{1, 10}: 9, {12, 14}: 1, {11, 12}: 0, {9, 25}: 12} {
		require.Equal(t, time.Duration(want)*time.Second, s.ran(at(span[0]), at(span[1])), span)
	}
	for span, want := range map[[2]int]bool{
		{1, 3}: false, {1, 11}: true, {12, 13}: true, // the standstill is a long one
		{14, 15}: false, {19, 21}: true, {18, 22}: false, {20, 21}: false, {30, 32}: false,
	} {
		require.Equal(t, want, s.cutOff(at(span[0]), at(span[1])), span)
	}
}

// TestLastCall requires that an unknown answer to a repeat does not hide the answer of the call itself.
func TestLastCall(t *testing.T) {
	story := []client.Moment{
		{What: "accepted"},
		{What: "attempt", Attempt: 1},
		{What: "answer", Attempt: 1, Class: string(models.Unavailable), Status: http.StatusServiceUnavailable},
		{What: "attempt", Attempt: 2},
		{What: "answer", Attempt: 2, Class: string(models.Unknown), Status: http.StatusGatewayTimeout},
		{What: "repeat", Attempt: 2},
		{What: "answer", Attempt: 2, Class: string(models.Unknown), Status: http.StatusTooManyRequests},
		{What: "repeat", Attempt: 2},
		{What: "answer", Attempt: 2, Class: string(models.Accepted), Status: http.StatusOK},
	}
	for n, want := range map[int][2]int{
		1: {}, 2: {1}, 3: {1, 503}, 4: {2}, 5: {2, 504}, 6: {2, 504}, 7: {2, 504}, 9: {2, 200},
	} {
		call, answer := lastCall(story[:n])
		var got [2]int
		if call != nil {
			got[0] = call.Attempt
		}
		if answer != nil {
			got[1] = answer.Status
		}
		require.Equal(t, want, got, n)
	}
}

// TestHeldOnlyInDoubt requires that a log may be held only if the drill hides the result of its call.
func TestHeldOnlyInDoubt(t *testing.T) {
	answer := func(class models.Class, status int, reason models.Reason) *client.Moment {
		return &client.Moment{What: "answer", Class: string(class), Status: status, Reason: string(reason)}
	}
	hung := answer(models.Unknown, 0, models.OutcomeUnknown)
	failed := answer(models.Unknown, http.StatusInternalServerError, models.OutcomeUnknown)
	down := answer(models.Unknown, http.StatusServiceUnavailable, models.OutcomeUnknown)
	late := answer(models.Unavailable, 0, models.StartByPassed)
	slow := answer(models.Unavailable, 0, models.NotComposed)
	for _, c := range []struct {
		holds  doubts
		in     string
		answer *client.Moment
		want   bool
	}{
		{answersWithheld, "met", hung, true},
		{answersWithheld, "met", failed, true},
		{answersWithheld, "met", down, false}, // 503 says that nothing was taken
		{answersWithheld, "met", answer(models.Accepted, http.StatusAccepted, ""), false},
		{answersWithheld, "", hung, false}, // no fault of the provider gave the answer
		{answersWithheld, "killed", nil, false},
		{callsCutOff, "killed", nil, true},
		{callsCutOff, "frozen", hung, true},
		{callsCutOff, "frozen", late, true},
		{callsCutOff, "frozen", slow, true},
		{callsCutOff, "frozen", nil, false},
		{callsCutOff, "", nil, false},
		{callsCutOff, "", hung, false},
		{callsCutOff, "killed", failed, false},
		{appendsLost, "", nil, true},
		{appendsLost, "", late, true},
		{appendsLost, "", hung, false},
		{eventsWithheld, "killed", nil, false},
	} {
		v := &verdict{scenario: &scenario{holds: c.holds}, sim: &providers{}, incident: &incident{}}
		switch c.in {
		case "killed":
			v.incident.killed++
		case "frozen":
			v.incident.woken = append(v.incident.woken, time.Now())
		}
		require.Equal(t, c.want, v.inDoubt(c.answer, c.in == "met"), "%b %s %+v", c.holds, c.in, c.answer)
	}
}
