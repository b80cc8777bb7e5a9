package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// maxMessages is the number of messages that a request may have.
const maxMessages = 1000

// messages are those of a request that has several.
type messages struct {
	begin func() *intake.Builder // nil: there may be none
	list  []service.Message
}

// close releases the resources of the messages.
func (m *messages) close() {
	for _, one := range m.list {
		one.Close()
	}
}

// readMessages decodes the messages of a request, each as a batch of its own.
func (d *decoder) readMessages(j *jsonReader) error {
	d.seen["messages"] = true
	j.allow(maxRecipientJSON, valueTooLarge("/messages"))
	t, err := j.Token()
	if err != nil {
		return j.jsonError(err)
	}
	if t != json.Delim('[') {
		d.Wrong("/messages", "wrong_type", "messages must be a list of batches.")
		return skipObject(j, t)
	}
	for n := 0; j.more(maxRecipientJSON, valueTooLarge("/messages/"+strconv.Itoa(n))); n++ {
		var raw json.RawMessage
		if err := j.Decode(&raw); err != nil {
			return j.jsonError(err)
		}
		if err := d.AddContent(len(raw)); err != nil {
			return err
		}
		if n == maxMessages {
			d.Wrong("/messages", "too_many", "A request may have at most %d messages.", maxMessages)
		}
		if n >= maxMessages {
			continue
		}
		if err := d.readMessage(n, raw); err != nil {
			return err
		}
	}
	if _, err := j.Token(); err != nil {
		return j.jsonError(err)
	}
	if len(d.messages.list) == 0 {
		d.Wrong("/messages", "required", "Add at least one message.")
	}
	return nil
}

// readMessage decodes a message.
func (d *decoder) readMessage(n int, raw []byte) error {
	here := "/messages/" + strconv.Itoa(n)
	if raw[0] != '{' {
		d.Wrong(here, "wrong_type", "A message must be an object like a batch.")
		return nil
	}
	one := newDecoder(d.messages.begin())
	d.messages.list = append(d.messages.list, service.Message{Builder: one.Builder, Key: messageKey(raw)})
	err := one.readJSON(bytes.NewReader(raw))
	var e *service.Error
	if errors.As(err, &e) {
		for i := range e.Fields {
			e.Fields[i].Pointer = here + e.Fields[i].Pointer
		}
		e.Detail, e.Position = fmt.Sprintf("Message %d, counted from 0: %s", n, e.Detail), nil
	}
	return err
}

// messageKey returns the same for messages that differ only in their recipients, and in spelling.
func messageKey(raw []byte) string {
	members := map[string][]byte{}
	eachMember(raw, func(name string, value []byte) {
		var b bytes.Buffer
		if name != "to" && json.Compact(&b, value) == nil {
			members[name] = b.Bytes()
		}
	})
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		_, _ = fmt.Fprintf(h, "%q %d %s\n", name, len(members[name]), members[name]) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// createMessages is POST /v1/batches for several messages.
func (s *Server) createMessages(c *gin.Context, d *decoder, repeat service.Repeat) {
	ctx, who := c.Request.Context(), caller(c)
	for _, name := range slices.Sorted(maps.Keys(d.seen)) {
		if name != "messages" {
			d.Wrong(service.Pointer(name), "conflict", "A request with messages has no %s of its own.", name)
		}
	}
	if err := d.Err(); err != nil {
		s.fail(c, err)
		return
	}
	if c.Query("dry_run") == "true" {
		v, err := s.svc.TryMessages(ctx, who, d.messages.list, d.Permissive())
		answer(s, c, v, err)
		return
	}
	v, replayed, err := s.svc.AcceptMessages(ctx, who, d.messages.list, d.Permissive(), repeat)
	if err != nil {
		s.fail(c, err)
		return
	}
	markReplay(c, replayed)
	c.JSON(http.StatusAccepted, v)
}
