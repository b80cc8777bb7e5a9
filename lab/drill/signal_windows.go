package drill

import (
	"errors"
	"os"
)

const canFreeze = false

func freeze(*os.Process) error { return errors.ErrUnsupported }
func wake(*os.Process) error   { return errors.ErrUnsupported }
