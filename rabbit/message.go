package rabbit

import (
	"encoding/json"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	diedHeader = "sd-died" // handlers that died over the message
	whyHeader  = "sd-why"  // why it was parked
	leftHeader = "sd-left" // ms that are left to wait after the delay it is in
)

// early is how much too soon a message may be handed over.
const early = 50 * time.Millisecond

// outgoing makes a message ready to publish: to the main exchange, or into a
// delay while its time has not come.
func (t topology) outgoing(m *models.Message, died int) (*outgoing, error) {
	stamped := *m
	stamped.Stamp(time.Now())
	body, err := json.Marshal(&stamped)
	if err != nil {
		return nil, fmt.Errorf("%w: message: %w", models.ErrInvalid, err)
	}
	o := &outgoing{exchange: t.main(), key: m.Key(), msg: amqp.Publishing{ContentType: "application/json", Body: body, Headers: amqp.Table{}}}
	if m.Lane != "" {
		o.msg.Headers[laneHeader] = string(m.Lane)
	}
	if died > 0 {
		o.msg.Headers[diedHeader] = int32(died) //nolint:gosec // bounded by MaxDeliveries
	}
	if wait := time.Until(m.NotBefore); !m.NotBefore.IsZero() && wait > early {
		part := tier(wait)
		o.exchange = t.delay(part)
		o.msg.Headers[leftHeader] = (max(0, wait-part) + time.Millisecond - 1).Milliseconds()
	}
	return o, nil
}

// parkedMessage makes a message ready for the parking lot.
func (t topology) parkedMessage(d *amqp.Delivery, why string) *outgoing {
	return &outgoing{exchange: t.parking(), key: d.RoutingKey, msg: amqp.Publishing{ContentType: d.ContentType, Body: d.Body,
		Timestamp: time.Now().UTC(), Headers: amqp.Table{whyHeader: models.ParkedWhy(why)}}}
}

// incoming reads a delivery. What is left to wait is told by the broker's time,
// too: the clock of who published it may be ahead.
func incoming(d *amqp.Delivery) (m models.Message, died int, err error) {
	if err := json.Unmarshal(d.Body, &m); err != nil {
		return m, 0, fmt.Errorf("%w: body is no message: %w", models.ErrInvalid, err)
	}
	if err := m.Validate(); err != nil {
		return m, 0, err
	}
	if n, ok := d.Headers[diedHeader].(int32); ok {
		died = max(0, int(n))
	}
	if n, ok := d.Headers[leftHeader].(int64); ok {
		if at := time.Now().Add(time.Duration(n) * time.Millisecond); at.Before(m.NotBefore) {
			m.NotBefore = at
		}
	}
	return m, died, nil
}

// fromParked reads a parked delivery.
func fromParked(d *amqp.Delivery) models.Parked {
	p := models.Parked{ID: d.MessageId, Key: d.RoutingKey, At: d.Timestamp, Raw: d.Body}
	if why, ok := d.Headers[whyHeader].(string); ok {
		p.Why = why
	} else if _, ok := d.Headers["x-first-death-reason"]; ok {
		p.Why = fmt.Sprintf("delivered %d times without an end (workers died over it)", models.MaxDeliveries)
	}
	if m, _, err := incoming(d); err == nil {
		p.Message, p.Raw = m, nil
	}
	return p
}
