package cassandra

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/models"
)

// The pauses between tries double from firstPause to mostPause.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// runner runs statements and repeats them. All of them may be repeated: plain writes are idempotent, and repeating a
// compare-and-set with the same values finds out its outcome.
type runner struct {
	session *gocql.Session
	timeout time.Duration   // how long a call tries
	closing <-chan struct{} // closed to end tries that have no other end
	limit   *semaphore      // nil: no limit
	guard   *guard          // nil: compare-and-sets are always made
}

// effort says how an operation is tried.
type effort int

const (
	// plain: a failure means that nothing is known to have been done.
	plain effort = iota
	// deciding: after a try that may have had an effect, a failure is ErrOutcomeUnknown.
	deciding
	// settling: deciding, and while the outcome is unknown it is tried until the context ends.
	settling
)

// try calls f until it succeeds, fails permanently, or the time is over.
func (r *runner) try(ctx context.Context, e effort, f func() error) error {
	var (
		deadline = time.Now().Add(r.timeout)
		pause    = firstPause
		unknown  bool
		closing  <-chan struct{}
	)
	failed := func(err error) error {
		if unknown && e != plain {
			return fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err)
		}
		return fmt.Errorf("%w: %w", models.ErrUnavailable, err)
	}
	for {
		release, err := r.limit.acquire(ctx)
		if err != nil {
			return failed(err)
		}
		err = f()
		release()
		switch classify(err) {
		case done:
			if err != nil && unknown && e != plain {
				return failed(err) // the try before may have had its effect
			}
			return err
		case maybe:
			unknown = true
		case nothing:
		}
		if ctx.Err() != nil {
			return failed(errors.Join(ctx.Err(), err))
		}
		wait := pause/2 + rand.N(pause/2) //nolint:gosec // spreads tries
		if e == settling && unknown {
			closing = r.closing
		} else if time.Now().Add(wait).After(deadline) {
			return failed(err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return failed(errors.Join(ctx.Err(), err))
		case <-closing:
			timer.Stop()
			return failed(err)
		}
		pause = min(2*pause, mostPause)
	}
}

// verdict says what an error means for a try.
type verdict int

const (
	done    verdict = iota // it succeeded, or can never succeed
	nothing                // it had no effect; try again
	maybe                  // it may have had its effect; try again
)

// classify returns the verdict on an error of the driver. After an unknown error the statement may have had its effect.
func classify(err error) verdict {
	if err == nil {
		return done
	}
	var (
		request   gocql.RequestError
		marshal   gocql.MarshalError
		unmarshal gocql.UnmarshalError
	)
	switch {
	case errors.Is(err, models.ErrDamaged), errors.Is(err, models.ErrNewer),
		errors.Is(err, gocql.ErrNotFound), errors.Is(err, gocql.ErrQueryArgLength),
		errors.As(err, &marshal), errors.As(err, &unmarshal):
		return done
	case errors.Is(err, gocql.ErrNoConnections), errors.Is(err, gocql.ErrNoStreams),
		errors.Is(err, gocql.ErrSessionClosed):
		return nothing
	case errors.As(err, &request):
		switch request.Code() {
		case gocql.ErrCodeSyntax, gocql.ErrCodeUnauthorized, gocql.ErrCodeInvalid, gocql.ErrCodeConfig,
			gocql.ErrCodeAlreadyExists, gocql.ErrCodeCredentials, gocql.ErrCodeProtocol, gocql.ErrCodeFunctionFailure:
			return done
		case gocql.ErrCodeUnavailable, gocql.ErrCodeBootstrapping, gocql.ErrCodeUnprepared:
			return nothing
		}
	}
	return maybe
}

// exec runs a statement that may be repeated.
func (r *runner) exec(ctx context.Context, e effort, cql string, args ...any) error {
	return r.try(ctx, e, func() error { return r.session.Query(cql, args...).WithContext(ctx).Exec() })
}

// cas runs a compare-and-set. If it was not applied, row holds the current values. It may be empty.
func (r *runner) cas(
	ctx context.Context, e effort, cql string, args ...any,
) (applied bool, row map[string]any, err error) {
	if err := r.guard.err(); err != nil {
		return false, nil, err
	}
	err = r.try(ctx, e, func() (err error) {
		row = map[string]any{} // the driver fills what it finds in it
		applied, err = r.session.Query(cql, args...).WithContext(ctx).MapScanCAS(row)
		return undecided(err)
	})
	return applied, row, err
}

// undecided prepares an error of a compare-and-set for classify. Replicas may turn out to be unavailable after the
// others have agreed, when only the commit is left. So the compare-and-set may have had its effect.
func undecided(err error) error {
	var request gocql.RequestError
	if errors.As(err, &request) && request.Code() == gocql.ErrCodeUnavailable {
		return fmt.Errorf("compare-and-set: %v", err) //nolint:errorlint // otherwise classify would say that it had no effect
	}
	return err
}

// scanner reads the columns of a row.
type scanner func(dest ...any) error

// query returns all rows.
func query[T any](
	ctx context.Context, r *runner, row func(scan scanner) (T, error), cql string, args ...any,
) (out []T, err error) {
	err = r.try(ctx, plain, func() error {
		out = nil
		return scan(r.session.Query(cql, args...).WithContext(ctx).Iter(), row, &out)
	})
	return out, err
}

// page returns some rows, from a state on, and the state for the next page, which is empty after the last.
func page[T any](
	ctx context.Context, r *runner, rows int, state []byte, row func(scan scanner) (T, error), cql string, args ...any,
) (out []T, next []byte, err error) {
	err = r.try(ctx, plain, func() error {
		out = nil
		it := r.session.Query(cql, args...).WithContext(ctx).PageSize(rows).PageState(state).Iter()
		next = it.PageState()
		return scan(it, row, &out)
	})
	return out, next, err
}

// column reads the only column of a row.
func column[T any](scan scanner) (v T, err error) {
	err = scan(&v)
	return v, err
}

// scan appends the rows of an iterator to out.
func scan[T any](it *gocql.Iter, row func(scan scanner) (T, error), out *[]T) error {
	rows := it.Scanner()
	for rows.Next() {
		v, err := row(rows.Scan)
		if err != nil {
			_ = it.Close()
			return err
		}
		*out = append(*out, v)
	}
	return rows.Err()
}

// single returns the only row. Errors: models.ErrNotFound.
func single[T any](
	ctx context.Context, r *runner, row func(scan scanner) (T, error), cql string, args ...any,
) (v T, err error) {
	rows, err := query(ctx, r, row, cql, args...)
	if err == nil && len(rows) == 0 {
		err = models.ErrNotFound
	}
	if err != nil {
		return v, err
	}
	return rows[0], nil
}
