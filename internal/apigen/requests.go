package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
)

// requests are the bodies that no operation has.
var requests = []reflect.Type{
	reflect.TypeFor[NewBatch](), reflect.TypeFor[MessageChange](), reflect.TypeFor[intake.Recipient](),
	reflect.TypeFor[client.SendWindow](), reflect.TypeFor[client.Reschedule](), reflect.TypeFor[client.SetDefaults](),
}

// NewBatch is the body of POST /v1/batches.
type NewBatch struct {
	intake.Batch
	To []string `json:"to" required:"true" min:"1" schema:"Recipient"`
	// Files of the message, with at most 25,000,000 bytes together. What each provider carries is in
	// docs/capabilities.md; one that cannot carry the message is not used for it.
	Attachments []intake.Attachment `json:"attachments" max:"100"`
}

// MessageChange is a record of PUT /v1/messages.
type MessageChange struct {
	// Yours: up to 255 bytes of text without control characters. It names one message of yours until its log is
	// removed.
	ID     string `json:"id" required:"true" min:"1" max:"255"`
	Action string `json:"action" schema:"ChangeAction"`
	To     string `json:"to" schema:"Mailbox"`
	Name   string `json:"name"` // Name of the recipient.
	// Values of placeholders, as those of a recipient of a batch.
	Vars         map[string]string `json:"vars" max:"100" schema:"Variable"`
	intake.Batch `without:"together,cc,bcc,allow_duplicates"`
}

// form adds the schema of the fields of a batch in a form. All are texts.
func (d *description) form() {
	var b strings.Builder
	b.WriteString("    NewBatchForm:\n      type: object\n      required: [to]\n      properties:\n" +
		"        to: {type: string, description: \"Mailboxes, separated by commas. The field may be repeated.\"}\n")
	for _, f := range operation.Fields(reflect.TypeFor[intake.Batch]()) {
		text, media := d.words.of(f.Declaring, f.Field.Name), ""
		switch kind := f.Field.Type.Kind(); {
		case kind == reflect.Bool, f.Field.Type == reflect.TypeFor[*bool]():
			text = "`true` or `false`. " + text
		case f.Field.Type == reflect.TypeFor[[]string]():
			text = "Values, separated by commas. " + text
		case kind == reflect.Pointer:
			text = "As JSON, or `none`. " + text
		case kind != reflect.String:
			text, media = "As JSON. "+text, ", contentMediaType: application/json"
		case f.Field.Tag.Get("enum") != "":
			text = "One of " + strings.ReplaceAll(f.Field.Tag.Get("enum"), ",", ", ") + "."
		}
		text = strconv.Quote(strings.TrimSpace(text))
		fmt.Fprintf(&b, "        %s: {type: string%s, description: %s}\n", f.Name, media, text)
	}
	d.schemas["NewBatchForm"] = b.String()
}
