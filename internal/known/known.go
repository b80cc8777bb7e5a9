// Package known notes which connections have sent a request that was verified: with an API key, a session or the
// signature of a provider. They keep their place when all are taken.
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
