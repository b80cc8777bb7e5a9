package provider

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// failing has an answer that says that the provider fails, of each class that can.
var failing = []models.Part{
	{Class: models.Unavailable, Status: 503, Text: "503"},
	{Class: models.Unknown, Text: "no answer"},
	{Class: models.Throttled, Status: 429, Text: "too many requests"},
	{Class: models.AccountClass, Status: 401, Text: "the key is revoked"},
}

// call makes a call that takes a while and gets an answer, as soon as one is allowed.
func (h *Health) call(t *testing.T, takes time.Duration, answer models.Part) {
	t.Helper()
	for {
		done, ok := h.Begin("a.test", 1)
		if ok {
			time.Sleep(takes)
			answer.Recipients = models.SetOf(1)
			done([]models.Part{answer}, takes)
			return
		}
		_, until := h.Usable("a.test", time.Now(), true)
		time.Sleep(max(time.Millisecond, time.Until(until)))
	}
}

// A provider whose newest call failed is not called healthy, however few calls there are and
// however long ago it was. The health says what was answered, and how many calls failed.
func TestFailingProviderIsNeverHealthy(t *testing.T) {
	t.Parallel()
	for _, answer := range failing {
		synctest.Test(t, func(t *testing.T) {
			h := newHealth("sg", time.Minute, defaultConfig())
			for n := 1; n <= 8; n++ {
				h.call(t, 100*time.Millisecond, answer)
				for range 3 {
					is := h.Report(time.Now(), control.ProviderMode{})
					require.NotEqual(t, telemetry.Healthy, is.State, answer.Class)
					require.Equal(t, n, is.Failures)
					require.Equal(t, answer.Words(), is.LastError)
					time.Sleep(time.Hour)
				}
			}
			h.call(t, 100*time.Millisecond, models.Part{Class: models.Accepted})
			is := h.Report(time.Now(), control.ProviderMode{})
			require.Equal(t, telemetry.Healthy, is.State)
			require.Zero(t, is.Failures)
			require.Empty(t, is.LastError)
		})
	}
}

// An answer about one recipient, one request or one sender is not the provider's failure.
func TestRefusedMailIsNoFailure(t *testing.T) {
	t.Parallel()
	h := newHealth("sg", time.Minute, defaultConfig())
	for _, class := range []models.Class{
		models.RejectedRecipient, models.RejectedRequest, models.RejectedHereClass, models.Split,
	} {
		h.call(t, 0, models.Part{Class: class})
		require.Equal(t, telemetry.Healthy, h.state(), class)
	}
	h.call(t, 0, models.Part{Class: models.AccountClass, Reason: models.SenderNotVerified})
	require.Equal(t, telemetry.Healthy, h.state())
	require.Empty(t, h.FailedCalls())
}

// The times of failed calls are from the beginning of the first to the first success of a
// call that began after that failure was known.
func TestFailedCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHealth("sg", time.Minute, defaultConfig())
		began := time.Now()
		at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond).UTC() }
		slow, ok := h.Begin("a.test", 1)
		require.True(t, ok)
		time.Sleep(100 * time.Millisecond)
		h.call(t, 50*time.Millisecond, failing[0])
		slow([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, 0) // began before
		h.call(t, 50*time.Millisecond, failing[1])
		lasting := telemetry.FailedCalls{From: at(100), Known: at(150), Last: at(200), Calls: 2}
		require.Equal(t, []telemetry.FailedCalls{lasting}, h.FailedCalls())
		time.Sleep(300 * time.Millisecond)
		h.call(t, 50*time.Millisecond, models.Part{Class: models.Accepted})
		ended := lasting
		ended.To = at(550)
		require.Equal(t, []telemetry.FailedCalls{ended}, h.FailedCalls())
		for range 3 * failuresKept { // short ones are forgotten first
			h.call(t, time.Millisecond, failing[0])
			h.call(t, time.Millisecond, models.Part{Class: models.Accepted})
		}
		kept := h.FailedCalls()
		require.Len(t, kept, failuresKept)
		require.Equal(t, ended, kept[0])
	})
}

// linesOf returns the messages of a log.
func linesOf(t *testing.T, out string) (messages []string) {
	for line := range strings.Lines(out) {
		var l struct {
			Msg   string `json:"msg"`
			Calls int    `json:"failed_calls"`
			Why   string `json:"why"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		messages = append(messages, fmt.Sprint(l.Msg, "; ", l.Calls, "; ", l.Why))
	}
	return messages
}

// The log has one line when calls begin to fail, one when they succeed again, and one now and
// then. A moment of failures soon after another one has none.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer models.Part
		lines  []string
	}{
		"down": {failing[0], []string{"provider is failing; 1; 503 Service Unavailable"}},
		"key": {failing[3], []string{"provider suspended: it rejects its credentials or quota; 1; " +
			"401 Unauthorized: the key is revoked"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				cfg := defaultConfig()
				cfg.Logger = slog.New(slog.NewJSONHandler(&out, nil))
				h := newHealth("sg", time.Minute, cfg)
				lines := c.lines
				ok := models.Part{Class: models.Accepted}
				for began := time.Now(); time.Since(began) < failuresAgain-6*time.Minute; time.Sleep(20 * time.Second) {
					h.call(t, time.Second, c.answer)
				}
				require.Equal(t, lines, linesOf(t, out.String()))
				for began := time.Now(); time.Since(began) < failuresAgain-time.Minute; time.Sleep(20 * time.Second) {
					h.call(t, time.Second, c.answer)
				}
				all := linesOf(t, out.String())
				require.Len(t, all, 2, "%q", all)
				h.call(t, time.Second, ok)
				all = linesOf(t, out.String())
				require.Len(t, all, 3)
				require.Contains(t, all[2], "provider recovered: calls succeed again")
				time.Sleep(failuresQuiet)
				h.call(t, time.Second, failing[0])
				h.call(t, time.Second, ok)
				for range 5 {
					h.call(t, time.Second, failing[0])
					h.call(t, time.Second, ok)
				}
				require.Len(t, linesOf(t, out.String()), 5, "of six moments in ten seconds only the first")
			})
		})
	}
}
