package dialect

import (
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Once calls do with the idempotency key of a request that creates mail: that of the client, or one that an equal
// request has, too, if this one gets no answer. hash is the same for equal requests.
func (r *Request) Once(hash string, do func(service.Repeat) error) error {
	repeat := r.Repeat
	if repeat.Hash = hash; repeat.Key != "" {
		return do(repeat)
	}
	replay := r.Replays.Begin(r.Context(), r.Who.User, repeat.Route+" "+hash)
	repeat.Key = replay.Key
	err := do(repeat)
	replay.End(err != nil && again(err))
	return err
}

// again reports whether clients repeat a request that failed with an error.
func again(err error) bool {
	e, ok := err.(*problem.Error) //nolint:errorlint // service returns it as it is
	return !ok || e.Kind.Status() >= 500 || e.RetryAfter > 0
}
