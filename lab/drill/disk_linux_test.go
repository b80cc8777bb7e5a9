package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/safedelivr/safedelivr/client"
)

// diskFull limits the size of files to that of the smallest large one, so that nothing more can be written, until
// batches are refused. It then removes the limit.
func diskFull(ctx context.Context, d *drill) error {
	var before unix.Rlimit
	pid := d.servers.worker.cmd.Process.Pid
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &before); err != nil {
		return err
	}
	full := before
	files, err := filepath.Glob(filepath.Join(d.environment.dir, "data", "*"))
	if err != nil {
		return err
	}
	smallest := uint64(1 << 62)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() && info.Size() > 1<<16 {
			smallest = min(smallest, uint64(info.Size())) //nolint:gosec // not negative
		}
	}
	full.Cur = smallest
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &full, nil); err != nil {
		return err
	}
	d.broken()
	refusals, all := errgroup.WithContext(ctx)
	for range 20 { // at once: whether a batch was written is looked at for 30 s before it is refused
		refusals.Go(func() error { return refused(all, d.mail) })
	}
	if err := refusals.Wait(); err != nil {
		return err
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &before, nil); err != nil {
		return err
	}
	d.healed()
	return nil
}

// refused offers batches until one is refused.
func refused(ctx context.Context, mail *traffic) error {
	for {
		err := mail.offer(ctx)
		var e *client.Error
		switch {
		case err == nil:
			continue
		case !errors.As(err, &e):
			return err
		case e.Status != http.StatusServiceUnavailable || e.Code == "":
			return fmt.Errorf("with a full disk a batch is answered: %w", err)
		}
		return nil
	}
}
