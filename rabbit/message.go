package rabbit

import (
	"encoding/json"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	panicsHeader   = "sd-panics"   // number of handlers that panicked
	returnedHeader = "sd-returned" // times that it was redelivered before it was renewed
	whyHeader      = "sd-why"      // why it was parked
	atHeader       = "sd-at"       // when it was parked, in Unix microseconds
	leftHeader     = "sd-left"     // ms left to wait after the delay that it is in
)

// messageVersion is the version of the form of messages. It grows with each kind of
// message and each member that older processes must not ignore.
const messageVersion = 1

// body is the form of a message.
type body struct {
	Version int `json:"v"`
	models.Message
}

// newerPause is how long a message of a newer version waits for a process of that version.
const newerPause = 5 * time.Second

// postponed prepares a message of a newer version for publishing as it is, into a delay.
// A process that can read it may take it then.
func (t topology) postponed(d *amqp.Delivery) *outgoing {
	o := &outgoing{
		exchange: t.delay(tier(newerPause)),
		key:      d.RoutingKey,
		msg:      amqp.Publishing{ContentType: d.ContentType, Body: d.Body, Headers: amqp.Table{}},
		ours:     true,
	}
	for _, name := range []string{laneHeader, panicsHeader} {
		if v, ok := d.Headers[name]; ok {
			o.msg.Headers[name] = v
		}
	}
	return o
}

// history counts the failed deliveries of a message, which a new message with the
// same content would not have.
type history struct{ panics, returned int }

const (
	renewAt     = queueLimit / 2            // redeliveries after which a message is published anew
	maxReturned = 10 * models.MaxDeliveries // redeliveries after which it is parked
)

// early is how much too soon a message may be handed over.
const early = 50 * time.Millisecond

// outgoing prepares a message for publishing: to the main exchange, or into a delay
// if its NotBefore lies in the future.
func (t topology) outgoing(m *models.Message, was history) (*outgoing, error) {
	stamped := *m
	stamped.Stamp(time.Now())
	raw, err := json.Marshal(body{messageVersion, stamped})
	if err != nil {
		return nil, fmt.Errorf("%w: message: %w", models.ErrInvalid, err)
	}
	o := &outgoing{
		exchange: t.main(),
		key:      m.Key(),
		msg:      amqp.Publishing{ContentType: "application/json", Body: raw, Headers: amqp.Table{}},
		ours:     t.has(models.Queue{Kind: m.Kind, Provider: queueProvider(m), Lane: queueLane(m)}),
	}
	if m.Lane != "" {
		o.msg.Headers[laneHeader] = string(m.Lane)
	}
	if was.panics > 0 {
		o.msg.Headers[panicsHeader] = int32(was.panics) //nolint:gosec // bounded by MaxDeliveries
	}
	if was.returned > 0 {
		o.msg.Headers[returnedHeader] = int32(was.returned) //nolint:gosec // bounded by maxReturned
	}
	if wait := time.Until(m.NotBefore); !m.NotBefore.IsZero() && wait > early {
		part := tier(wait)
		o.exchange, o.ours = t.delay(part), true
		o.msg.Headers[leftHeader] = (max(0, wait-part) + time.Millisecond - 1).Milliseconds()
	}
	return o, nil
}

// parkedMessage prepares a message for the parking lot. at is when it was parked;
// zero: it is not known.
func (t topology) parkedMessage(d *amqp.Delivery, why string, at time.Time) *outgoing {
	o := &outgoing{
		exchange: t.parking(),
		key:      d.RoutingKey,
		msg: amqp.Publishing{ContentType: d.ContentType, Body: d.Body,
			Headers: amqp.Table{whyHeader: models.ParkedWhy(why)}},
		ours: true,
	}
	if !at.IsZero() {
		o.msg.Timestamp = at.UTC()
		o.msg.Headers[atHeader] = at.UnixMicro()
	}
	return o
}

// incoming reads a delivery. The clock of its publisher may be ahead, so NotBefore is
// limited by the time that is left to wait after a delay. Errors: models.ErrInvalid,
// models.ErrNewer (only a newer version of the program can read it).
func incoming(d *amqp.Delivery) (m models.Message, was history, err error) {
	var form struct {
		Version int `json:"v"`
	}
	if json.Unmarshal(d.Body, &form) == nil && form.Version > messageVersion {
		return m, was, fmt.Errorf("%w: message of version %d", models.ErrNewer, form.Version)
	}
	if err := json.Unmarshal(d.Body, &m); err != nil {
		return m, was, fmt.Errorf("%w: body is no message: %w", models.ErrInvalid, err)
	}
	if err := m.Validate(); err != nil {
		return m, was, err
	}
	if n, ok := d.Headers[panicsHeader].(int32); ok {
		was.panics = min(max(0, int(n)), models.MaxDeliveries)
	}
	if n, ok := d.Headers[returnedHeader].(int32); ok {
		was.returned = min(max(0, int(n)), maxReturned)
	}
	if n, ok := d.Headers[leftHeader].(int64); ok {
		if at := time.Now().Add(time.Duration(n) * time.Millisecond); at.Before(m.NotBefore) {
			m.NotBefore = at
		}
	}
	return m, was, nil
}

// returned returns how often the queue delivered the message again, as it counts for its delivery limit. RabbitMQ 4.3
// does not count what a worker gave back with a Nack when it stopped.
func returned(d *amqp.Delivery) int {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return int(min(max(0, n), maxReturned))
}

// redeliveredText is why a message that was redelivered n times is parked.
func redeliveredText(n int) string {
	return fmt.Sprintf("redelivered %d times: workers crashed, were stopped or lost their connection", n)
}

// fromParked reads a parked delivery.
func fromParked(d *amqp.Delivery) models.Parked {
	p := models.Parked{ID: d.MessageId, Key: d.RoutingKey, Raw: d.Body}
	if why, ok := d.Headers[whyHeader].(string); ok {
		p.Why, p.At = why, d.Timestamp
		if at, ok := d.Headers[atHeader].(int64); ok {
			p.At = time.UnixMicro(at)
		}
	} else if reason, at := death(d); reason != "" {
		p.Why, p.At = "dead-lettered by RabbitMQ ("+reason+")", at
		if reason == "delivery_limit" {
			p.Why = redeliveredText(queueLimit)
		}
	}
	if !p.At.IsZero() {
		p.At = p.At.UTC()
	}
	if m, _, err := incoming(d); err == nil {
		p.Message, p.Raw = m, nil
	}
	return p
}

// death returns why and when a queue last dead-lettered a message. reason is empty
// if none did.
func death(d *amqp.Delivery) (reason string, at time.Time) {
	all, _ := d.Headers["x-death"].([]any)
	if len(all) == 0 {
		return "", at
	}
	last, _ := all[0].(amqp.Table)
	reason, _ = last["reason"].(string)
	at, _ = last["time"].(time.Time)
	return models.ParkedWhy(reason), at
}
