package dialect

import (
	"context"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Once calls do with the idempotency key of a request that creates mail: that of the client, or one that an equal
// request has, too, if this one gets no answer. hash is the same for equal requests.
func (r *Request) Once(hash string, do func(service.Repeat) error) error {
	repeat := r.Repeat
	repeat.Hash = hash
	return r.Replays.Once(r.Context(), r.Who.User, repeat, do)
}

// Once calls do with the key of a repeat. One without a key gets that of an equal one whose client has left, or a new
// one. ctx ends when the client leaves.
func (r *Replays) Once(ctx context.Context, user string, repeat service.Repeat, do func(service.Repeat) error) error {
	if repeat.Key != "" {
		return do(repeat)
	}
	replay, failed := r.begin(ctx, user, repeat.Route+" "+repeat.Hash), true
	defer func() { replay.end(failed) }() // also after a panic
	repeat.Key = replay.key
	err := do(repeat)
	failed = err != nil && again(err)
	return err
}

// again reports whether clients repeat a request that failed with an error.
func again(err error) bool {
	e, ok := err.(*problem.Error) //nolint:errorlint // service returns it as it is
	return !ok || !Refused(e)
}
