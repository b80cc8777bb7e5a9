package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrInUse says that another process uses the data folder.
var ErrInUse = errors.New("data folder is in use")

// lockFile holds the lock of a data folder and the pid of the process that has it. It
// stays when the lock is released: removing it would race with the next process.
const lockFile = "lock"

// folderLock keeps other processes out of a data folder. It ends with the process,
// however that ends.
type folderLock struct{ file *os.File }

// lockFolder takes the lock of a folder. It does not wait. Errors: ErrInUse.
func lockFolder(dir string) (*folderLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := tryLock(f); err != nil {
		who := ""
		if b, e := io.ReadAll(io.LimitReader(f, 32)); e == nil && len(b) > 0 {
			who = " by process " + strings.TrimSpace(string(b))
		}
		_ = f.Close()
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("%w%s: %s", ErrInUse, who, dir)
		}
		return nil, fmt.Errorf("lock data folder %s: %w", dir, err)
	}
	if err := f.Truncate(0); err == nil { // an error does not matter: the pid is only information
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &folderLock{file: f}, nil
}

// release releases the lock.
func (l *folderLock) release() error {
	unlock(l.file)
	return l.file.Close()
}

var errLocked = errors.New("locked")
