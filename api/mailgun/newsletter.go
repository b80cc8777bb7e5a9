package mailgun

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Ghost repeats the requests of a newsletter up to six times after any error or time-out, and once more for a button,
// without a key. It may group the readers anew. So each reader's mail has an id made from the newsletter and the
// address, and is sent once, however often Ghost repeats it.

var newsletterID = regexp.MustCompile(`^[0-9a-f]{24}$`)

// newsletter returns Ghost's id of the newsletter that the request is for, or "".
func (m *message) newsletter() string {
	id, tags := m.get("v:email-id"), m.in.Batch.Tags
	if !m.each || m.files.Any() || !newsletterID.MatchString(id) ||
		!slices.Contains(tags, "bulk-email") || !slices.Contains(tags, "ghost-email") {
		return ""
	}
	return id
}

// acceptNewsletter stores the mail of those readers that have none yet.
func (m *message) acceptNewsletter(email string) (dialect.Answer, error) {
	newsletter := "mailgun " + strings.ToLower(m.Param("domain")) + " " + email
	m.setID(newsletter)
	records := m.in.NewRecords()
	defer records.Close()
	ids, seen := make([]string, len(m.to)), map[string]bool{}
	for i := range m.to {
		ids[i] = dialect.Digest(newsletter + " " + m.to[i].key)
		if seen[ids[i]] { // in another case, for example
			continue
		}
		seen[ids[i]] = true
		if err := records.Add(strconv.AppendInt(nil, int64(i), 10)); err != nil {
			return dialect.Answer{}, err
		}
	}
	results, err := m.Service.PutMessages(m.Context(), m.Who, records, service.RecordReader{
		Strict: true,
		DryRun: m.yes("o:testmode", false),
		Read: func(raw []byte) *changes.Record {
			i, _ := strconv.Atoi(string(raw)) // it was written above
			return &changes.Record{ID: ids[i], Action: changes.New, Hash: dialect.Digest(newsletter), Group: email, Raw: raw}
		},
		Fill: func(in *intake.Intake, rs []*changes.Record) error {
			in.Batch = m.in.Batch
			return in.Read(func(yield func(*intake.Recipient, error) bool) {
				for _, record := range rs {
					i, _ := strconv.Atoi(string(record.Raw))
					r := m.recipient(i)
					if r.ClientID = record.ID; !yield(r, nil) {
						return
					}
				}
			})
		},
	})
	if err != nil {
		return dialect.Answer{}, err
	}
	for i := range results {
		if r := &results[i]; r.Status == changes.Rejected && r.Code != "other_rejected" {
			e := problem.New(problem.Invalid, r.Code, "%s", r.Detail)
			if r.Pointer != "" {
				e.Fields = []problem.FieldError{{Pointer: r.Pointer, Code: r.Code, Detail: r.Detail}}
			}
			return dialect.Answer{}, e
		}
	}
	return m.answer(results[0].Log.Batch()), nil
}
