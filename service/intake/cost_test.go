package intake

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// wrongs returns the pointer and the code of each mistake in err.
func wrongs(t *testing.T, err error) (out []string) {
	t.Helper()
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	for _, f := range e.Fields {
		out = append(out, f.Pointer+" "+f.Code)
	}
	return out
}

// TestTooManyPlaceholders: a message may have as many placeholders as a recipient may have
// variables. email and name do not count.
func TestTooManyPlaceholders(t *testing.T) {
	t.Parallel()
	for _, n := range []int{MaxVars, MaxVars + 1} {
		b := newIntake(t)
		vars, text := map[string]string{}, "{{email}}{{name}}"
		for i := range n {
			name := fmt.Sprintf("v%d", i)
			text += "{{" + name + "}}"
			if i < MaxVars {
				vars[name] = "x"
			}
		}
		b.Batch.Text = text
		require.NoError(t, b.add(&Recipient{Email: "a@b.de", Vars: vars}))
		_, err := b.Check()
		if n == MaxVars {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, []string{"/text too_many"}, wrongs(t, err))
	}
}

// TestPlaceholdersTakeNoMemory: no more names are collected than a message may have.
func TestPlaceholdersTakeNoMemory(t *testing.T) {
	b := newIntake(t)
	var text strings.Builder
	for i := range 20_000 {
		_, _ = fmt.Fprintf(&text, "{{v%d}}", i)
	}
	c := models.Content{Subject: text.String(), Text: text.String()}
	require.Less(t, testing.AllocsPerRun(3, func() { _, _ = placeholders(b.Batch.parts(&c)) }), 100.0)
	require.Less(t, testing.AllocsPerRun(3, func() { _ = newLine("the subject", c.Subject) }), 100.0)
}

// TestMissingValuesAreCounted: recipients without values are counted exactly, also after the
// list of mistakes is full.
func TestMissingValuesAreCounted(t *testing.T) {
	t.Parallel()
	b := newIntake(t)
	b.Batch.Text = "{{x}}{{y}}{{z}}"
	require.NoError(t, b.add(&Recipient{Email: "a@b.de", Vars: map[string]string{"x": "1", "y": "2", "z": "3"}}))
	for i := range 200 {
		require.NoError(t, b.add(&Recipient{Email: fmt.Sprintf("r%d@b.de", i), Vars: map[string]string{"y": "2", "w": "4"}}))
	}
	_, err := b.Check()
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 400, e.Total)
	require.Equal(t, []string{"/to/1/vars/x unknown_placeholder", "/to/1/vars/z unknown_placeholder"}, wrongs(t, err)[:2])
}

// TestSubjectLength: a subject that is too long with the values of a recipient is a mistake
// of that recipient.
func TestSubjectLength(t *testing.T) {
	t.Parallel()
	subject := strings.Repeat("s", 900) + "{{{{" // 902 bytes
	for _, c := range []struct {
		subject string
		want    []string
	}{
		{subject + "{{x}}", []string{"/to/1 too_long"}},
		{subject + "{{x}}{{x}}", []string{"/to/0 too_long", "/to/1 too_long"}},
		{subject + "{{email}}{{email}}", []string{"/to/2 too_long"}},
		{subject + "{{name}}", []string{"/to/2 too_long"}},
		{subject + "{{x}}" + strings.Repeat("s", 90), []string{"/subject too_long"}},
		{subject, nil},
	} {
		b := newIntake(t)
		b.Batch.Subject = c.subject + strings.Repeat(" ", 10)
		for _, r := range []Recipient{
			{Email: "a@b.de", Vars: map[string]string{"x": strings.Repeat("x", 96)}},
			{Email: "b@b.de", Vars: map[string]string{"x": strings.Repeat("x", 97), "name": "Ann"}},
			{Email: "c@" + strings.Repeat("c", 60) + ".de", Name: strings.Repeat("n", 97), Vars: map[string]string{"x": ""}},
		} {
			require.NoError(t, b.add(&r))
		}
		_, err := b.Check()
		if c.want == nil {
			require.NoError(t, err)
		} else {
			require.Equal(t, c.want, wrongs(t, err))
		}
	}
}

// TestClientLeaves: when the context ends, so do reading, checking and storing.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	b := newIntake(t)
	b.ctx = ctx
	b.Batch.Text = "{{x}}"
	require.NoError(t, b.add(&Recipient{Email: "a@b.de", Vars: map[string]string{"x": "1"}}))
	add := func() error { return b.add(&Recipient{Email: fmt.Sprintf("r%d@b.de", b.Count())}) }
	for range 10 * yieldAfter {
		require.NoError(t, add())
	}
	leave()
	added := 0
	var err error
	for ; err == nil && added <= yieldAfter; added++ {
		err = add()
	}
	require.ErrorIs(t, err, context.Canceled)
	_, err = b.Check()
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, b.Found(), "it went on to check recipients")
	require.ErrorIs(t, b.Chunks(func(int, []models.Recipient) error { return nil }), context.Canceled)
}

// TestLongAddress: long addresses are refused before they are parsed, and long domains before
// they are converted.
func TestLongAddress(t *testing.T) {
	_, err := ParseAddress("a@" + strings.Repeat("ü", 29_000) + ".de")
	require.ErrorIs(t, err, errTooLong)
	domain := strings.Repeat("ü.", 84) + "d" // 253 bytes
	_, err = ParseAddress("a@" + domain)
	require.ErrorIs(t, err, errDomain, "too long in ASCII")
	// The conversion of a domain allocates memory.
	long := "a@" + strings.Repeat("ü", 1000) + ".de"
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() {
		if _, err := normalise(long); err == nil {
			t.Fatal("accepted")
		}
	}), 0.0)
}

// TestOneRecipientCostsLittle: a batch of one recipient allocates what one recipient needs.
func TestOneRecipientCostsLittle(t *testing.T) { //nolint:paralleltest // it measures allocations
	accept := func() {
		b := newIntake(t)
		require.NoError(t, b.add(&Recipient{Email: "ann@example.com"}))
		_, err := b.Check()
		require.NoError(t, err)
		require.NoError(t, b.Chunks(func(int, []models.Recipient) error { return nil }))
	}
	accept()
	const times = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		accept()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/times, uint64(16<<10), "bytes")
}
