package queue

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// messageVersion is the version of the form of messages. It grows with each kind of message and each member that
// older processes must not ignore.
const messageVersion = 1

// form is the stored form of a message.
type form struct {
	Version int `json:"v"`
	models.Message
}

// decode reads a body. Errors: models.ErrInvalid, models.ErrNewer (only a newer version of the program can read it).
func decode(body string) (models.Message, error) {
	var f struct {
		Version int `json:"v"`
	}
	if json.Unmarshal([]byte(body), &f) == nil && f.Version > messageVersion {
		return models.Message{}, fmt.Errorf("%w: message of version %d", models.ErrNewer, f.Version)
	}
	var m models.Message
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		return models.Message{}, fmt.Errorf("%w: body is no message: %w", models.ErrInvalid, err)
	}
	return m, m.Validate()
}

// lease is one delivery of a message to this process.
type lease struct {
	ID     int64 `json:"id"`
	Number int32 `json:"n"` // of the delivery
}

// delivery is a message that was taken, and then its result. Without a result the message goes back as it was.
type delivery struct {
	lease
	queue  string
	body   string
	due    time.Time
	queued *time.Time // when it was queued again

	Panics int32   `json:"panics"`
	Lost   int32   `json:"lost"` // leases that ended without a result
	Done   bool    `json:"done"`
	Wait   *int64  `json:"wait"` // microseconds to the next delivery
	Why    *string `json:"why"`  // why it is parked
}

// park parks the message. PostgreSQL stores no zero bytes.
func (d *delivery) park(why string) {
	why = strings.ReplaceAll(models.ParkedWhy(why), "\x00", " ")
	d.Why = &why
}

// later delivers the message again after a wait.
func (d *delivery) later(wait time.Duration) {
	us := micros(max(0, wait))
	d.Wait = &us
}

// micros returns d in microseconds, rounded up.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}
