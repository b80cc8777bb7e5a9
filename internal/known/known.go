// Package known notes which requests were verified: by an API key, a session, a signed link or the signature of a
// provider. Their connections keep their place when all are taken, and their answers are not delayed.
package known

import "context"

type key struct{}

// With returns a context for the requests of a connection. mark is called when one was verified, and may be called
// often.
func With(ctx context.Context, mark func()) context.Context {
	return context.WithValue(ctx, key{}, mark)
}

// Mark notes that the request of a context was verified.
func Mark(ctx context.Context) {
	if mark, ok := ctx.Value(key{}).(func()); ok {
		mark()
	}
}
