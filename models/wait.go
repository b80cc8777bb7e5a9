package models

import (
	"slices"
	"time"
)

// WaitCode names what queued mail waits for. Codes are stable.
type WaitCode string

// The codes. Commands that withhold mail come first, and mail that a provider has, or may
// have, comes last.
const (
	WaitRestore          WaitCode = "restore"            // an operator lifts the hold after a restore
	WaitUserPaused       WaitCode = "user_paused"        // the user is resumed
	WaitBatchStopped     WaitCode = "batch_stopped"      // the batch is resumed
	WaitBatchCancelled   WaitCode = "batch_cancelled"    // a worker cancels what no provider has
	WaitExpiry           WaitCode = "expiry"             // a worker ends the mail, which has expired
	WaitSchedule         WaitCode = "schedule"           // the time at which the batch is to be delivered, or its window
	WaitBlockRule        WaitCode = "block_rule"         // an operator removes a block rule
	WaitProviderOffline  WaitCode = "provider_offline"   // an operator brings a provider online
	WaitProviderSuspend  WaitCode = "provider_suspended" // the suspension of a provider ends
	WaitNoWorker         WaitCode = "no_worker"          // a worker starts
	WaitRateLimit        WaitCode = "rate_limit"         // the rate of a provider allows more
	WaitConcurrencyLimit WaitCode = "concurrency_limit"  // a call to a provider ends
	WaitTurn             WaitCode = "turn"               // a worker hands the mail to a provider
	WaitRetry            WaitCode = "retry"              // the delay before the next attempt ends
	WaitEnding           WaitCode = "ending"             // a worker ends the mail
	WaitEvidence         WaitCode = "evidence"           // evidence, or the end of the evidence window
	WaitFinalEvent       WaitCode = "final_event"        // the final event, or the end of the wait for it
)

// waitCodes lists the codes in that order.
var waitCodes = []WaitCode{
	WaitRestore,
	WaitUserPaused,
	WaitBatchStopped,
	WaitBatchCancelled,
	WaitExpiry,
	WaitSchedule,
	WaitBlockRule,
	WaitProviderOffline,
	WaitProviderSuspend,
	WaitNoWorker,
	WaitRateLimit,
	WaitConcurrencyLimit,
	WaitTurn,
	WaitRetry,
	WaitEnding,
	WaitEvidence,
	WaitFinalEvent,
}

// Wait says what queued mail waits for.
type Wait struct {
	Code     WaitCode  `json:"code"`
	Text     string    `json:"text"`               // a sentence fragment for people
	Until    time.Time `json:"until,omitzero"`     // when the wait ends at the latest, or is tried again; zero: unknown
	Provider string    `json:"provider,omitempty"` // the provider that the mail waits for, if it is one
	Block    string    `json:"block_id,omitempty"` // the block rule that the mail waits for

	// Of the command that withholds the mail, if one does.
	By    string    `json:"by,omitempty"` // a user's ID, or "cli:" and a name
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since,omitzero"`

	Retry   int `json:"retry,omitempty"`   // number of the retry that follows; 0: it is none
	Retries int `json:"retries,omitempty"` // retries at most, if it is one
}

// ByCommand reports whether a command withholds the mail: nothing is sent before another
// command.
func (w *Wait) ByCommand() bool {
	switch w.Code { // the commands
	case WaitRestore, WaitUserPaused, WaitBatchStopped, WaitBlockRule, WaitProviderOffline:
		return true
	}
	return false
}

// Before reports whether w comes before o in waitCodes.
func (w *Wait) Before(o *Wait) bool {
	return slices.Index(waitCodes, w.Code) < slices.Index(waitCodes, o.Code)
}
