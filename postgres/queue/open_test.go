package queue

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func TestOpenRefusesMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{URL: "nothing"}, {URL: "postgres://127.0.0.1", Schema: `a"b`},
		{URL: "postgres://127.0.0.1", Providers: []string{"log"}}} {
		_, err := Open(t.Context(), c)
		require.ErrorIs(t, err, models.ErrInvalid, "%+v", c)
	}
}

// Processes that start together create the tables once. A process of an older version refuses them later.
func TestMigration(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			b, err := Open(context.Background(), c)
			if err == nil {
				err = b.Publish(context.Background(), messages(1)...)
				_ = b.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 8, rows(t, c, "true"))
	require.EqualValues(t, 1, admin(t, `UPDATE `+c.Schema+`.queue_schema SET version = $1`, schemaVersion+1), "one row")
	_, err := Open(t.Context(), c)
	require.ErrorIs(t, err, models.ErrNewer)
}

// A broker fails to open without the server. Later it lives through the loss of the server.
func TestLostServer(t *testing.T) {
	t.Parallel()
	c, p := through(t, newConfig(t))
	p.Refuse()
	_, err := Open(t.Context(), c)
	require.ErrorIs(t, err, models.ErrUnavailable)
	p.Accept()
	b := openWith(t, c)
	var box counter
	subscribe(t, b, 1, box.handle)
	for i := range 2 {
		p.Refuse()
		require.ErrorIs(t, b.Publish(t.Context(), messages(1)...), models.ErrUnavailable)
		require.ErrorIs(t, b.Ping(t.Context()), models.ErrUnavailable)
		p.Accept()
		require.Eventually(t, func() bool {
			return b.Publish(t.Context(), messages(1)...) == nil
		}, patience, 20*time.Millisecond)
		box.wait(t, i+1)
	}
}

// A server that takes no writes is not available.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	openWith(t, c)
	c.URL += "?default_transaction_read_only=on"
	b := openWith(t, c)
	require.ErrorIs(t, b.Ping(t.Context()), models.ErrUnavailable)
	require.ErrorIs(t, b.Publish(t.Context(), messages(1)...), models.ErrUnavailable)
}

// A server that does not answer blocks no call for longer than its context, and no subscription for long.
func TestSilentServerBlocksNoCall(t *testing.T) {
	t.Parallel()
	c, p := through(t, newConfig(t))
	b := openWith(t, c)
	stop := subscribe(t, b, 1, (&counter{}).handle)
	p.Freeze()
	defer p.Thaw()
	began := time.Now()
	for name, ask := range map[string]func(context.Context) error{
		"publish": func(ctx context.Context) error { return b.Publish(ctx, messages(1)...) },
		"wake":    func(ctx context.Context) error { return b.Wake(ctx, "u") },
		"depths":  func(ctx context.Context) error { _, err := b.Depths(ctx); return err },
		"parked":  func(ctx context.Context) error { _, err := b.Parked(ctx, 1); return err },
		"unpark":  func(ctx context.Context) error { return b.Unpark(ctx, "1") },
		"discard": func(ctx context.Context) error { return b.Discard(ctx, "1") },
		"purge":   func(ctx context.Context) error { return b.Purge(ctx) },
		"ping":    func(ctx context.Context) error { return b.Ping(ctx) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		require.ErrorIs(t, ask(ctx), models.ErrUnavailable, name)
		cancel()
	}
	require.Less(t, time.Since(began), 10*time.Second)
	stop()
	require.NoError(t, b.Close())
	require.Less(t, time.Since(began), patience)
}
