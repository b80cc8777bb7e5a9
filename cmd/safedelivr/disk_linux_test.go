package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// diskFull has every file of the data folder reach the limit of the process, so
// that nothing more can be written, until batches are refused; then the limit is
// lifted.
func diskFull(ctx context.Context, d *drill) error {
	var before unix.Rlimit
	pid := d.worker.cmd.Process.Pid
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &before); err != nil {
		return err
	}
	full := before
	files, err := filepath.Glob(filepath.Join(d.place.dir, "data", "*"))
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
	for refused := 0; refused < 20; {
		status, text, err := d.offered(ctx)
		switch {
		case err != nil:
			return err
		case status == http.StatusAccepted:
			continue
		case status != http.StatusServiceUnavailable || !strings.Contains(text, `"code"`):
			return fmt.Errorf("with a full disk a batch is answered %d %s", status, text)
		}
		refused++
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &before, nil); err != nil {
		return err
	}
	d.mended()
	return nil
}
