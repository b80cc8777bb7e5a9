package changes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
)

// verdict is what is decided about a record.
type verdict struct {
	status       Status
	code         string
	cancel, send bool
}

// TestJudge: what a record does depends on the state of the message, and on whether it is the same as the present
// version.
func TestJudge(t *testing.T) {
	t.Parallel()
	unchanged := verdict{status: Unchanged}
	rejected := func(code string) verdict { return verdict{status: Rejected, code: code} }
	exists := rejected("already_exists")
	queued := models.Result{State: models.Queued}
	cancelled := models.Result{State: models.Cancelled}
	replaced := models.Result{State: models.Cancelled, Detail: models.Replaced}
	delivered := models.Result{State: models.Success}
	expired := models.Result{State: models.Failed, Reason: models.Expired}
	failed := models.Result{State: models.Failed, Reason: models.MailboxInvalid}
	for name, c := range map[string]struct {
		is                              models.Result
		over                            bool
		again, other, same, new, cancel verdict // New and Update with the same message, with another one; Cancel
	}{
		"queued": {queued, false, unchanged, exists, unchanged, verdict{cancel: true, send: true}, verdict{cancel: true}},
		"a provider may have it": {
			queued, true, unchanged, exists, unchanged, rejected("in_flight"), rejected("in_flight"),
		},
		"sent": {
			models.Result{State: models.Sent}, true, unchanged, exists, unchanged, rejected("in_flight"), rejected("in_flight"),
		},
		"cancelled": {cancelled, false, unchanged, exists, unchanged, verdict{send: true}, unchanged},
		"replaced by a version that was never stored": {
			replaced, false, verdict{send: true}, exists, verdict{send: true}, verdict{send: true}, verdict{cancel: true},
		},
		"delivered": {
			delivered, true, unchanged, exists, unchanged, rejected("already_delivered"), rejected("already_delivered"),
		},
		"expired": {expired, false, unchanged, exists, unchanged, rejected("expired"), rejected("expired")},
		"failed":  {failed, true, unchanged, exists, unchanged, rejected("already_failed"), rejected("already_failed")},
	} {
		log := models.NewBatchID(time.Now()).Log(1)
		judge := func(action Action, hash string) verdict {
			k := task{Record: &Record{ID: "a", Action: action, Hash: hash}, now: clientid.Version{Log: log, Hash: "now"}}
			k.judge(&models.Status{Result: &c.is}, c.over)
			if k.result.Status != "" {
				require.Equal(t, log, k.result.Log, name)
			}
			return verdict{k.result.Status, k.result.Code, k.cancel, k.send}
		}
		require.Equal(t, c.again, judge(New, "now"), "%s: the same as new", name)
		require.Equal(t, c.other, judge(New, "other"), "%s: another one as new", name)
		require.Equal(t, c.same, judge(Update, "now"), "%s: update without a change", name)
		require.Equal(t, c.new, judge(Update, "other"), "%s: update", name)
		require.Equal(t, c.cancel, judge(Cancel, ""), "%s: cancel", name)
	}
}

// TestHandedOver: mail that a provider refused for sure is not with it, and mail with an unknown outcome may be.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	attempt := models.Entry{
		Number: 1, Kind: models.Attempt, Provider: "sg", At: time.Now(), StartBy: time.Now().Add(time.Hour),
		Recipients: models.SetOf(1),
	}
	for class, want := range map[models.Class]bool{
		"": true, models.Accepted: true, models.Unknown: true, models.Unavailable: false, models.RejectedRecipient: false,
	} {
		var facts []models.Fact
		if class != "" {
			o := models.Outcome{Attempt: 1, At: time.Now(), Parts: []models.Part{{Class: class, Recipients: models.SetOf(1)}}}
			facts = append(facts, models.Fact{Key: models.OutcomeKey(1), Outcome: &o})
		}
		v := models.Resolve(2, []models.Entry{attempt}, facts)
		require.Equal(t, want, handedOver(v, 1), class)
		require.False(t, handedOver(v, 2), "no call was made")
	}
}
