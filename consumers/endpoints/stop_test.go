package endpoints

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestStopWaitsForAnswer: a post without an answer when the worker stops gets its answer. The next worker does not
// repeat it, to an endpoint of a user or of everyone's mail.
func TestStopWaitsForAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, everyone := range []bool{false, true} {
			f := newFixture(t)
			arrived, answer := make(chan bool), make(chan bool)
			app := newReceiver(f, func(_ http.ResponseWriter, n int) {
				if n == 1 {
					arrived <- true
					<-answer
				}
			})
			f.as(f.newUser("ann"))
			if everyone {
				f.endpoint(app, everyonesMail)
			} else {
				f.endpoint(app, nil)
			}
			f.publish(f.batch(1, nil), 1, models.Success, 1)
			ctx, stop := context.WithCancel(t.Context())
			p, done := f.newPoster("first"), make(chan struct{})
			go func() { defer close(done); p.Run(ctx) }()
			<-arrived
			stop()
			answer <- true
			<-done

			f.publish(f.batch(1, nil), 1, models.Success, 1)
			f.run("second")
			f.eventually(func() bool { return len(app.accepted()) >= 2 })
			posts := app.got()
			require.Len(t, posts, 2)
			require.NotEqual(t, posts[0].id, posts[1].id)
		}
	})
}
