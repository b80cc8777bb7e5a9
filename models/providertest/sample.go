package providertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// SampleBatch returns the ID of the batch of sample calls.
func SampleBatch() models.ID {
	id, err := models.ParseBatchID("01930000-0000-7000-8abc-def000000000")
	if err != nil {
		panic(err)
	}
	return id
}

// SampleCall returns a call for n recipients with names and values that must be quoted. It
// is the same every time.
func SampleCall(n int) *models.Call {
	c := &models.Call{Batch: SampleBatch(), Attempt: 2, Content: &models.Content{
		From:    models.Address{Email: "shop@sender.test", Name: "Shop, Inc.; Ltd"},
		ReplyTo: []models.Address{{Email: "help@sender.test", Name: "Hülfe"}},
		Subject: "Order {{order}} for {{name}}",
		Text:    "Hello {{name}},\n{{order}}",
		HTML:    "<p>Hello {{name}} & {{order}}</p>",
	}}
	for i := 1; i <= n; i++ {
		c.Recipients = append(c.Recipients, models.CallRecipient{Log: SampleBatch().Log(i), Recipient: models.Recipient{
			Email: fmt.Sprintf("user%d@rcpt.test", i), Name: fmt.Sprintf("Doe; J<%d>", i),
			Vars: map[string]string{"order": fmt.Sprintf("A%d\r\n\"x\" \\", i)}}})
	}
	return c
}

// Posts parses every post in testdata/webhook and compares the results with testdata/parsed.
// There must be at least that many posts.
func Posts(t *testing.T, p models.Adapter, least int) {
	t.Helper()
	files, err := filepath.Glob("testdata/webhook/*.json")
	if err != nil || len(files) < least {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file) //nolint:gosec // test data
		if err != nil {
			t.Fatal(err)
		}
		got := p.Parse(body)
		Sound(t, got)
		out, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		Golden(t, "parsed/"+filepath.Base(file), append(out, '\n'))
	}
}
