package simulator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// The provider takes the mail, but its answer never comes. There is a copy
// nevertheless.
func Example() {
	sim := simulator.New(simulator.Options{RecipientKey: "id"})
	server := httptest.NewServer(sim)
	defer server.Close()
	defer sim.Close() // first, it ends hanging calls
	if err := sim.AddAccount(simulator.Account{Name: "sg", Kind: simulator.SendGrid, Key: "secret"}); err != nil {
		panic(err)
	}
	sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody, Times: 1})

	send := func(ctx context.Context) (status int, err error) {
		body := `{"personalizations":[{"to":[{"email":"ann@example.com"}],"custom_args":{"id":"7"}}],
			"from":{"email":"shop@example.com"},"subject":"Hello","content":[{"type":"text/plain","value":"Hello"}]}`
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/sg/v3/mail/send", strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("Content-Type", "application/json")
		resp, err := server.Client().Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	ctx, giveUp := context.WithCancel(context.Background())
	go func() {
		for sim.Stats("").Hung == 0 {
			time.Sleep(time.Millisecond)
		}
		giveUp()
	}()
	_, err := send(ctx)
	fmt.Println("answered:", err == nil, "copies:", len(sim.Copies("7")))

	status, _ := send(context.Background()) // sending again without evidence doubles the mail
	fmt.Println(status, "copies:", len(sim.Copies("7")), "doubled:", sim.Stats("").Doubled)
	// Output:
	// answered: false copies: 1
	// 202 copies: 2 doubled: 1
}
