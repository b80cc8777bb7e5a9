package control

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/safedelivr/safedelivr/models"
)

// snapshotVersion is the version of the stored form of rules.
const snapshotVersion = 1

// snapshot is the stored form of Rules.
type snapshot struct {
	Version   int                      `json:"v"`
	UpTo      int                      `json:"n"`
	Batches   map[models.ID]savedBatch `json:"b,omitempty"`
	Users     map[string]savedUser     `json:"u,omitempty"`
	Limits    map[string]models.Limits `json:"l,omitempty"`
	Providers map[string]ProviderMode  `json:"p,omitempty"`
	Probes    map[string]probed        `json:"pr,omitempty"`
	Blocks    []models.Block           `json:"bl,omitempty"`
	Holds     []models.Command         `json:"h,omitempty"`
	Resumed   int                      `json:"r,omitempty"`
	Erased    int                      `json:"er,omitempty"`
}

type savedBatch struct {
	Stop     *models.Command  `json:"s,omitempty"`
	Cancel   *models.Command  `json:"c,omitempty"`
	Releases []models.Command `json:"r,omitempty"`

	Reschedule *models.Command `json:"t,omitempty"`
	Try        *models.Command `json:"n,omitempty"`
}

type savedUser struct {
	Pause         *models.Command `json:"p,omitempty"`
	Disable       *models.Command `json:"d,omitempty"`
	SessionsEnded int             `json:"e,omitempty"`
	Resumed       int             `json:"r,omitempty"`
	Senders       []string        `json:"s,omitempty"`
	Set           bool            `json:"set,omitempty"`

	Defaults models.SendDefaults `json:"df,omitzero"`
}

// Snapshot returns the stored form of the rules and the number of their last command. It
// leaves out the rules of batches with IDs less than purged, which do not exist any more.
func (r *Rules) Snapshot(purged models.ID) (number int, raw []byte, err error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := snapshot{
		Version:   snapshotVersion,
		UpTo:      r.upTo,
		Batches:   map[models.ID]savedBatch{},
		Users:     map[string]savedUser{},
		Limits:    r.limits,
		Providers: r.providers,
		Probes:    r.probes,
		Blocks:    r.blocks,
		Holds:     r.holds,
		Resumed:   r.resumed,
		Erased:    r.erased,
	}
	for id, b := range r.batches {
		if !less(id, purged) {
			s.Batches[id] = savedBatch{
				Stop: b.stop, Cancel: b.cancel, Releases: b.releases, Reschedule: b.reschedule, Try: b.try,
			}
		}
	}
	for id, u := range r.users {
		s.Users[id] = savedUser{
			Pause:         u.pause,
			Disable:       u.disable,
			SessionsEnded: u.sessionsEnded,
			Resumed:       u.resumed,
			Senders:       u.senders,
			Set:           u.set,
			Defaults:      u.defaults,
		}
	}
	raw, err = json.Marshal(s)
	return s.UpTo, raw, err
}

// restore replaces the rules by those of a snapshot, unless the snapshot is of fewer
// commands. Errors: models.ErrNewer, models.ErrInvalid.
func (r *Rules) restore(raw []byte) error {
	var s snapshot
	if err := models.DecodeStored(raw, &s); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	if s.Version > snapshotVersion {
		return fmt.Errorf("rules: %w", models.ErrNewer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.UpTo <= r.upTo {
		return nil
	}
	fresh := NewRules()
	for id, b := range s.Batches {
		fresh.batches[id] = &batchCommands{
			stop:       b.Stop,
			cancel:     b.Cancel,
			reschedule: b.Reschedule,
			try:        b.Try,
			releases:   b.Releases,
		}
	}
	for id, u := range s.Users {
		fresh.users[id] = &userCommands{
			pause:         u.Pause,
			disable:       u.Disable,
			sessionsEnded: u.SessionsEnded,
			resumed:       u.Resumed,
			senders:       u.Senders,
			set:           u.Set,
			defaults:      u.Defaults,
		}
		fresh.userResumed = max(fresh.userResumed, u.Resumed)
	}
	maps.Copy(fresh.limits, s.Limits)
	maps.Copy(fresh.providers, s.Providers)
	maps.Copy(fresh.probes, s.Probes)
	r.upTo, r.resumed, r.userResumed, r.erased = s.UpTo, s.Resumed, fresh.userResumed, s.Erased
	r.batches, r.users, r.limits = fresh.batches, fresh.users, fresh.limits
	r.providers, r.probes, r.blocks, r.holds = fresh.providers, fresh.probes, s.Blocks, s.Holds
	return nil
}
