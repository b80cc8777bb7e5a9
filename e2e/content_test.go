package e2e

import (
	"mime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/simulator"
)

// TestRerouteChangesNothing requires that a mail that is rerouted arrives with the same header fields, subject and
// bodies, and that the log says what the other provider left out.
func TestRerouteChangesNothing(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{KeepContent: true})
		r.serveHere()
		accepted, err := r.client.CreateBatch(t.Context(), client.NewBatch{
			From:      "Shop <shop@demo.test>",
			ReplyTo:   []string{"Hülfe <help@demo.test>", "more@demo.test"},
			Subject:   "Größe 100% of {{order}}",
			Text:      "Order {{order}}, %recipient.x%",
			HTML:      "<p>Order {{order}}</p>",
			Headers:   map[string]string{"List-Id": "<news.demo.test>", "X-Order": "№ {{order}} für {{name}}"},
			Tags:      []string{"one", "two", "three", "four"},
			Metadata:  map[string]string{"campaign": "autumn"},
			Providers: []string{"sg", "mg"},
			To: []client.Recipient{{Email: "blocked-sg@demo.test", Name: "Ann", Vars: map[string]any{"order": "A-1"},
				Metadata: map[string]string{"customer": "17"}}},
		})
		require.NoError(t, err)
		id := r.id(accepted.ID)
		done := r.done(id)
		require.EqualValues(t, 1, done.Counts.Success)
		require.Equal(t, []string{"one", "two", "three", "four"}, done.Tags)
		require.Equal(t, map[string]string{"campaign": "autumn"}, done.Metadata)
		copies := r.sim.Copies(id.Log(1).String())
		require.Len(t, copies, 2)
		for i := range copies {
			for name, value := range copies[i].Headers {
				copies[i].Headers[name], err = new(mime.WordDecoder).DecodeHeader(value)
				require.NoError(t, err)
			}
			require.NotEmpty(t, copies[i].Headers["Reply-To"])
		}
		require.Equal(t, "№ A-1 für Ann", copies[0].Headers["X-Order"])
		require.Equal(t, "<news.demo.test>", copies[0].Headers["List-Id"])
		require.Equal(t, copies[0].Content, copies[1].Content)

		log, err := r.client.Log(t.Context(), id.Log(1).String())
		require.NoError(t, err)
		require.Equal(t, map[string]string{"customer": "17"}, log.Metadata)
		require.Equal(t, []client.LeftOut{{Provider: "mg", Text: "1 of 4 tags: it takes 3"}}, log.LeftOut)
		require.Equal(t, models.Success, models.State(log.State))
	})
}

// TestHundredMailsRerouted sends a hundred mails with their attachments through the API. One provider bounces each,
// and the other one delivers it. Both had the same mail, except for what capabilities.md says.
func TestHundredMailsRerouted(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{KeepContent: true})
		r.serveHere()
		mails := providertest.Mails()
		ids := make([]models.ID, len(mails))
		for i := range mails {
			m := &mails[i]
			batch := client.NewBatch{From: "Shop <shop@demo.test>", Subject: m.Subject, Text: m.Text, HTML: m.HTML, Tags: m.Tags,
				Headers: map[string]string{}, Providers: []string{"sg", "mg"},
				To: []client.Recipient{{Email: "blocked-sg@demo.test", Name: "Ann", Vars: map[string]any{"order": "A-1 & <b>"}}}}
			for _, h := range m.Headers {
				batch.Headers[h.Name] = h.Value
			}
			for k, a := range m.Attachments {
				batch.Attachments = append(batch.Attachments, client.Attachment{Filename: a.Filename, ContentType: a.Type,
					ContentID: a.ContentID, Content: m.Files[k]})
			}
			accepted, err := r.client.CreateBatch(t.Context(), batch)
			require.NoError(t, err, m.Name)
			ids[i] = r.id(accepted.ID)
		}
		for i, id := range ids {
			m := &mails[i]
			done := r.done(id)
			require.EqualValues(t, 1, done.Counts.Success, m.Name)
			require.Len(t, done.Attachments, len(m.Files), m.Name)
			copies := r.sim.Copies(id.Log(1).String())
			require.Len(t, copies, 2, m.Name)
			require.NotEqual(t, copies[0].Account, copies[1].Account)
			require.Equal(t, m.Text == "", copies[0].Text == "")
			for k := range copies {
				for name, value := range copies[k].Headers {
					var err error
					copies[k].Headers[name], err = new(mime.WordDecoder).DecodeHeader(value)
					require.NoError(t, err)
				}
				require.Len(t, copies[k].Attachments, len(m.Files), m.Name)
				for n := range copies[k].Attachments {
					a := &copies[k].Attachments[n]
					require.Equal(t, m.Attachments[n].SHA256, a.SHA256, m.Name)
					if a.ContentID != "" {
						a.Filename = "" // Mailgun has only the content id
					}
				}
			}
			require.Equal(t, copies[0].Content, copies[1].Content, m.Name)
			require.Equal(t, copies[0].Attachments, copies[1].Attachments, m.Name)
		}
	})
}
