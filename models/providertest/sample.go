package providertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// SampleBatch is the batch of sample calls.
func SampleBatch() models.ID {
	id, err := models.ParseBatchID("01930000-0000-7000-8abc-def000000000")
	if err != nil {
		panic(err)
	}
	return id
}

// SampleCall is a call for n recipients that looks the same every time, with
// names and values that have to be quoted.
func SampleCall(n int) *models.Call {
	c := &models.Call{Batch: SampleBatch(), Attempt: 2, Content: &models.Content{
		From: models.Address{Email: "shop@sender.test", Name: "Shop, Inc.; Ltd"}, ReplyTo: models.Address{Email: "help@sender.test", Name: "Hülfe"},
		Subject: "Order {{order}} for {{name}}", Text: "Hello {{name}},\n{{order}}", HTML: "<p>Hello {{name}} & {{order}}</p>"}}
	for i := 1; i <= n; i++ {
		c.Recipients = append(c.Recipients, models.CallRecipient{Log: SampleBatch().Log(i), Recipient: models.Recipient{
			Email: fmt.Sprintf("user%d@rcpt.test", i), Name: fmt.Sprintf("Doe; J<%d>", i), Vars: map[string]string{"order": fmt.Sprintf("A%d\r\n\"x\" \\", i)}}})
	}
	return c
}

// Posts checks what is made of every post in testdata/webhook, of which there are
// at least that many, against testdata/parsed.
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
