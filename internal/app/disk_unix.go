//go:build unix

package app

import "golang.org/x/sys/unix"

// freeSpace returns the free space of the disk of a folder, in bytes, as far as this process may use it.
func freeSpace(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:gosec,unconvert // the types differ between systems
}
