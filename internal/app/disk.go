package app

import (
	"context"
	"encoding/json"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// diskPoll is how often the free space is looked at.
const diskPoll = 5 * time.Second

// watchDisk reports while the free space of the data folder is below the reserve, so that operators know why batches
// are refused.
func (a *App) watchDisk(ctx context.Context) {
	if !a.cfg.Has("api") || a.cfg.Limits.DiskReserve <= 0 {
		return
	}
	var low telemetry.Disk // what was reported
	for now := range models.Every(ctx, diskPoll) {
		free, err := freeSpace(a.cfg.DataDir)
		if err != nil {
			continue // a request that needs the space logs it
		}
		d := telemetry.Disk{Folder: a.cfg.DataDir, Free: free, Reserve: a.cfg.Limits.DiskReserve, Since: low.Since}
		switch fits := free >= d.Reserve; {
		case fits && low.Since.IsZero():
			continue
		case fits:
			d = telemetry.Disk{}
			a.log.Info("the disk has enough free space again; batches are accepted", "folder", a.cfg.DataDir, "free", free)
		case low.Since.IsZero():
			d.Since = now.UTC()
			a.log.Warn("batches are refused: the free space of the disk is below limits.disk_reserve",
				"folder", d.Folder, "free", free, "reserve", d.Reserve)
		}
		raw, err := json.Marshal(d)
		if err == nil {
			err = a.store.PutTransient(ctx, telemetry.DiskReport, a.cfg.Worker, raw, telemetry.DiskTTL)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("cannot report the free space of the disk; will retry", "err", err)
		}
		low = d
	}
}
