package rabbit

import (
	"encoding/json"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	diedHeader     = "sd-died"     // handlers that died over the message
	returnedHeader = "sd-returned" // times that it came back without an end before it was renewed
	whyHeader      = "sd-why"      // why it was parked
	atHeader       = "sd-at"       // when, in Unix microseconds
	leftHeader     = "sd-left"     // ms that are left to wait after the delay it is in
)

// past is what a message has been through that a new one of the same content has
// not.
type past struct{ died, returned int }

const (
	renewedAt   = queueLimit / 2 // times that a message comes back before it is published anew
	maxReturned = 10 * models.MaxDeliveries
)

// early is how much too soon a message may be handed over.
const early = 50 * time.Millisecond

// outgoing makes a message ready to publish: to the main exchange, or into a
// delay while its time has not come.
func (t topology) outgoing(m *models.Message, was past) (*outgoing, error) {
	stamped := *m
	stamped.Stamp(time.Now())
	body, err := json.Marshal(&stamped)
	if err != nil {
		return nil, fmt.Errorf("%w: message: %w", models.ErrInvalid, err)
	}
	o := &outgoing{exchange: t.main(), key: m.Key(), msg: amqp.Publishing{ContentType: "application/json", Body: body, Headers: amqp.Table{}},
		ours: t.has(models.Queue{Kind: m.Kind, Provider: queueProvider(m), Lane: queueLane(m)})}
	if m.Lane != "" {
		o.msg.Headers[laneHeader] = string(m.Lane)
	}
	if was.died > 0 {
		o.msg.Headers[diedHeader] = int32(was.died) //nolint:gosec // bounded by MaxDeliveries
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

// parkedMessage makes a message ready for the parking lot, into which it came at a
// time; zero when nobody knows.
func (t topology) parkedMessage(d *amqp.Delivery, why string, at time.Time) *outgoing {
	o := &outgoing{exchange: t.parking(), key: d.RoutingKey, msg: amqp.Publishing{ContentType: d.ContentType, Body: d.Body,
		Headers: amqp.Table{whyHeader: models.ParkedWhy(why)}}, ours: true}
	if !at.IsZero() {
		o.msg.Timestamp = at.UTC()
		o.msg.Headers[atHeader] = at.UnixMicro()
	}
	return o
}

// incoming reads a delivery. What is left to wait is told by the broker's time,
// too: the clock of who published it may be ahead.
func incoming(d *amqp.Delivery) (m models.Message, was past, err error) {
	if err := json.Unmarshal(d.Body, &m); err != nil {
		return m, was, fmt.Errorf("%w: body is no message: %w", models.ErrInvalid, err)
	}
	if err := m.Validate(); err != nil {
		return m, was, err
	}
	if n, ok := d.Headers[diedHeader].(int32); ok {
		was.died = min(max(0, int(n)), models.MaxDeliveries)
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

// returned is how often the queue had the message back without an end.
func returned(d *amqp.Delivery) int {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return int(min(max(0, n), maxReturned))
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
		p.Why, p.At = "put aside by RabbitMQ ("+reason+")", at
		if reason == "delivery_limit" {
			p.Why = fmt.Sprintf("came back %d times without an end: workers died over it, were stopped or lost their connection", queueLimit)
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

// death is why and when a queue let go of a message last; "" when none did.
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
