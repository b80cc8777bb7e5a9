package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/safedelivr/safedelivr/models"
)

// The pauses between tries double from firstPause to mostPause.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
	// oneTry bounds a try, so that a connection that hangs is left.
	oneTry = 10 * time.Second
)

// effort says how an operation is tried. All of them may be repeated: plain writes are idempotent, and repeating a
// compare-and-set with the same values finds out its outcome.
type effort int

const (
	// plain: a failure means that nothing is known to have been done.
	plain effort = iota
	// deciding: after a try that may have had an effect, a failure is models.ErrOutcomeUnknown.
	deciding
	// settling: deciding, and while the outcome is unknown it is tried until the context ends.
	settling
)

// try calls f until it succeeds, fails permanently, or the time is over.
func (e *engine) try(ctx context.Context, how effort, f func(ctx context.Context) error) error {
	var (
		deadline = time.Now().Add(e.timeout)
		pause    = firstPause
		unknown  bool
	)
	for {
		once, cancel := context.WithTimeout(ctx, oneTry)
		err := f(once)
		cancel()
		again, maybe := classify(err)
		unknown = unknown || maybe
		if !again {
			return err
		}
		wait := pause/2 + rand.N(pause/2) //nolint:gosec // spreads tries
		late := time.Now().Add(wait).After(deadline) && (how != settling || !unknown)
		if !late {
			models.Pause(ctx, wait)
		}
		if late || ctx.Err() != nil {
			if unknown && how != plain {
				return fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, errors.Join(ctx.Err(), err))
			}
			return fmt.Errorf("%w: %w", models.ErrUnavailable, errors.Join(ctx.Err(), err))
		}
		pause = min(2*pause, mostPause)
	}
}

// errAgain is returned by a try that another caller has overtaken.
var errAgain = errors.New("another caller was faster")

// classify says what an error means for a try: whether to try again, and whether it may have had its effect.
func classify(err error) (again, maybe bool) {
	var server *pgconn.PgError
	switch {
	case err == nil:
		return false, false
	case errors.Is(err, errAgain), pgconn.SafeToRetry(err):
		return true, false
	case errors.Is(err, models.ErrInvalid):
		return false, false
	case !errors.As(err, &server):
		return true, true // the connection was lost, or the try took too long
	}
	switch class := server.Code[:min(2, len(server.Code))]; {
	case strings.HasPrefix(server.Code, "57P"), class == "08":
		return true, true // the server is stopping, or lost the connection
	case class == "40", class == "53", class == "55", server.Code == "57014", server.Code == "25006":
		return true, false // it was rolled back: a conflict, no room, a lock, a time limit, a server that only reads
	}
	return false, false
}

// failed turns what the server refuses into models.ErrInvalid, and what it can never do into models.ErrUnavailable.
func failed(err error) error {
	var server *pgconn.PgError
	if !errors.As(err, &server) || errors.Is(err, models.ErrUnavailable) || errors.Is(err, models.ErrOutcomeUnknown) {
		return err
	}
	if strings.HasPrefix(server.Code, "22") || strings.HasPrefix(server.Code, "54") {
		return fmt.Errorf("%w: %w", models.ErrInvalid, err)
	}
	return fmt.Errorf("%w: %w", models.ErrUnavailable, err)
}

// writable refuses a server that only reads, so that the next host is tried.
func writable(ctx context.Context, conn *pgconn.PgConn) error {
	result := conn.ExecParams(ctx, `SHOW transaction_read_only`, nil, nil, nil, nil).Read()
	if result.Err != nil {
		return result.Err
	}
	if len(result.Rows) == 1 && string(result.Rows[0][0]) == "on" {
		return errors.New("the server only reads")
	}
	return nil
}
