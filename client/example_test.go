package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// exampleServer answers as Safedelivr does.
func exampleServer() *httptest.Server {
	mux := http.NewServeMux()
	answer := func(pattern string, status int, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})
	}
	answer("POST /v1/batches", http.StatusAccepted, `{"id":"b1","state":"queued","recipients":2,"lane":"urgent"}`)
	answer("GET /v1/batches/b1", http.StatusOK,
		`{"id":"b1","state":"done","counts":{"accepted":2,"delivered":1,"failed":1}}`)
	answer("GET /v1/batches/b1/logs", http.StatusOK,
		`{"logs":[{"id":"l2","email":"bob@example.com","state":"failed","reason":"mailbox_invalid"}],"next_cursor":""}`)
	answer("POST /v1/batches/b2/stop", http.StatusNotFound,
		`{"status":404,"code":"not_found","detail":"There is no such batch.","request_id":"r7"}`)
	return httptest.NewServer(mux)
}

func Example() {
	server := exampleServer()
	defer server.Close()
	ctx := context.Background()
	c := client.New(server.URL, "sd_key")

	accepted, err := c.CreateBatch(ctx, client.NewBatch{
		From:    "Shop <shop@example.com>",
		Subject: "Your code, {{name}}",
		Text:    "It is {{code}}.",
		To: []client.Recipient{
			{Email: "ann@example.com", Name: "Ann", Vars: map[string]any{"code": "A-17"}},
			{Email: "bob@example.com", Name: "Bob", Vars: map[string]any{"code": "B-4"}},
		},
	}, client.IdempotencyKey("order-1017"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("accepted:", accepted.Recipients)

	batch, err := c.Batch(ctx, accepted.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("delivered:", batch.Counts.Delivered, "failed:", batch.Counts.Failed)
	// Output:
	// accepted: 2
	// delivered: 1 failed: 1
}

func ExampleClient_Logs() {
	server := exampleServer()
	defer server.Close()
	c := client.New(server.URL, "sd_key")

	for l, err := range c.Logs(context.Background(), "b1", client.LogOptions{State: client.Failed}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(l.Email, l.Reason)
	}
	// Output: bob@example.com mailbox_invalid
}

func ExampleClient_StreamBatch() {
	server := exampleServer()
	defer server.Close()
	c := client.New(server.URL, "sd_key")

	customers := func(yield func(client.Recipient) bool) {
		for i := range 2 {
			if !yield(client.Recipient{Email: fmt.Sprintf("customer%d@example.com", i)}) {
				return
			}
		}
	}
	news := client.NewBatch{From: "shop@example.com", Subject: "News", Text: "We are open."}
	accepted, err := c.StreamBatch(context.Background(), news, customers)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(accepted.ID, accepted.State)
	// Output: b1 queued
}

func ExampleError() {
	server := exampleServer()
	defer server.Close()
	c := client.New(server.URL, "sd_key")

	_, err := c.StopBatch(context.Background(), "b2", "wrong prices")
	var problem *client.Error
	if errors.As(err, &problem) {
		fmt.Println(problem.Status, problem.Code, problem.RequestID)
	}
	// Output: 404 not_found r7
}

func ExampleRepeatable() {
	server := exampleServer()
	defer server.Close()
	ctx := context.Background()
	c := client.New(server.URL, "sd_key")

	batch := client.NewBatch{
		From:    "shop@example.com",
		Subject: "Hello",
		Text:    "Hello.",
		To:      []client.Recipient{{Email: "ann@example.com"}, {Email: "bob@example.com"}},
	}
	for {
		accepted, err := c.CreateBatch(ctx, batch, client.IdempotencyKey("greeting-1"))
		if client.Repeatable(err) {
			time.Sleep(time.Second)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(accepted.ID)
		break
	}
	// Output: b1
}
