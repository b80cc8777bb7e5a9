package e2e

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers"
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
		require.EqualValues(t, 1, done.Counts.Delivered)
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
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) { rerouteMails(t, b, simulated.Usual) })
}

// TestHundredMailsBetweenAnyTwo is TestHundredMailsRerouted for each pair of kinds that can be simulated, in both
// directions.
func TestHundredMailsBetweenAnyTwo(t *testing.T) {
	for _, first := range simulated.Kinds() {
		for _, second := range simulated.Kinds() {
			if first == second || !testkit.Full() && (first != simulator.SMTP || second != simulator.Postmark) {
				continue
			}
			t.Run(first+"/"+second, func(t *testing.T) {
				pair, err := simulated.NewPair(first, second)
				require.NoError(t, err)
				rerouteMails(t, testkit.Backends()[0], pair)
			})
		}
	}
}

// rerouteMails sends a hundred mails that the first provider of a pair bounces. Where one of them cannot carry a mail,
// the other has it alone.
func rerouteMails(t *testing.T, b testkit.Backend, pair simulated.Pair) {
	t.Helper()
	first, second := pair[0].Name, pair[1].Name
	// No mail waits for a slot so long, and no call takes so long, that the other provider gets it first.
	prefix := "SAFEDELIVR_PROVIDERS_" + strings.ToUpper(first)
	r := newRigOf(t, b, pair, simulator.Options{KeepContent: true}, prefix+"_CONCURRENCY=200", prefix+"_TIMEOUT=30s")
	r.serveHere()
	own := ownHeaders(pair)
	mails := providertest.Mails()
	ids := make([]models.ID, len(mails))
	for i := range mails {
		m := &mails[i]
		batch := client.NewBatch{From: "Shop <shop@demo.test>", Subject: m.Subject, Text: m.Text, HTML: m.HTML, Tags: m.Tags,
			Headers: map[string]string{}, Providers: []string{first, second},
			To: []client.Recipient{{Email: "blocked-" + first + "@demo.test", Name: "Ann",
				Vars: map[string]any{"order": "A-1 & <b>"}, Headers: own}}}
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
	compared := 0
	for i, id := range ids {
		m := &mails[i]
		done := r.done(id)
		require.Len(t, done.Attachments, len(m.Files), m.Name)
		copies := r.sim.Copies(id.Log(1).String())
		at := func(name string) bool {
			return slices.ContainsFunc(copies, func(c simulator.Copy) bool { return c.Account == name })
		}
		require.Equal(t, at(second), done.Counts.Delivered == 1, m.Name)
		for _, name := range carriersOf(t, pair, m) {
			require.True(t, at(name) || r.refusedHere(id, name), "%s did not get %s", name, m.Name)
		}
		for k := range copies {
			copies[k] = decoded(t, &copies[k])
			require.Equal(t, m.Text == "", copies[k].Text == "")
			require.Len(t, copies[k].Attachments, len(m.Files), m.Name)
			for n := range copies[k].Attachments {
				require.Equal(t, m.Attachments[n].SHA256, copies[k].Attachments[n].SHA256, m.Name)
			}
			if own != nil {
				require.Equal(t, "№ A-1 & <b>", copies[k].Headers["X-Own"], m.Name)
			}
			if own["list-id"] != "" {
				require.Equal(t, "<own.demo.test>", copies[k].Headers["List-Id"], m.Name)
			}
		}
		if len(copies) == 2 {
			compared++
			require.NotEqual(t, copies[0].Account, copies[1].Account)
			require.Equal(t, copies[0].Content, copies[1].Content, m.Name)
			for n := range copies[0].Attachments {
				a, b := &copies[0].Attachments[n], &copies[1].Attachments[n]
				if a.Type == "" || b.Type == "" { // Brevo takes it from the name
					a.Type, b.Type = "", ""
				}
			}
			require.Equal(t, copies[0].Attachments, copies[1].Attachments, m.Name)
		}
	}
	require.Greater(t, compared, len(mails)/3)
	rerouteOptions(r, pair)
	rerouteTogether(r, pair)
}

// rerouteOptions sends a mail with the Message-ID of the application, a long conversation, tags of any text and 16 KiB
// of metadata. Both providers have the same, or the declared difference.
func rerouteOptions(r *rig, pair simulated.Pair) {
	t, first := r.t, pair[0].Name
	var refs []string
	for i := range 60 {
		refs = append(refs, fmt.Sprintf("<reply.%d@app.test>", i))
	}
	const id = "<message.1@app.test>"
	metadata := map[string]string{"note": strings.Repeat("x", 16_000), "empty": ""}
	tags := []string{"Größe XL / 2026", "two words"}
	accepted, err := r.client.CreateBatch(t.Context(), client.NewBatch{
		From: "Shop <shop@demo.test>", Subject: "A reply", Text: "Text", Tags: tags, Metadata: metadata,
		Headers:   map[string]string{"Message-ID": id, "References": strings.Join(refs, " "), "In-Reply-To": refs[59]},
		Providers: pair.Names(), To: []client.Recipient{{Email: "blocked-" + first + "@demo.test"}},
	})
	require.NoError(t, err)
	batch := r.id(accepted.ID)
	done := r.done(batch)
	require.EqualValues(t, 1, done.Counts.Delivered)
	require.Equal(t, metadata, done.Metadata)
	require.Equal(t, tags, done.Tags)
	log, err := r.client.Log(t.Context(), batch.Log(1).String())
	require.NoError(t, err)
	require.Equal(t, id, log.RFCMessageID)
	copies := r.sim.Copies(batch.Log(1).String())
	require.Len(t, copies, 2)
	for i := range copies {
		c := decoded(t, &copies[i])
		kind, _ := providers.Find(pair[slices.Index(pair.Names(), c.Account)].Kind)
		got := strings.Fields(c.Headers["References"])
		require.Equal(t, refs[0], got[0], "the first one is kept")
		require.Equal(t, refs[59], c.Headers["In-Reply-To"])
		last := refs[59]
		if kind.Carries.MessageID {
			require.Equal(t, id, c.Headers["Message-Id"])
		} else {
			last = id
		}
		require.Equal(t, last, got[len(got)-1], "%s: the newest one is kept", c.Account)
		require.LessOrEqual(t, len(c.Headers["References"]), 998)
	}
}

// rerouteTogether sends one mail to two visible addresses and a copy. The first provider bounces one of them, and the
// second one delivers to it.
func rerouteTogether(r *rig, pair simulated.Pair) {
	t, first, second := r.t, pair[0].Name, pair[1].Name
	for i := range pair {
		if kind, _ := providers.Find(pair[i].Kind); !kind.Carries.Copies {
			return // capabilities.md says so
		}
	}
	bounced := "blocked-" + first + "+2@demo.test"
	accepted, err := r.client.CreateBatch(t.Context(), client.NewBatch{
		From: "Shop <shop@demo.test>", Subject: "To all", Text: "Text", Together: true, Providers: pair.Names(),
		To: []client.Recipient{{Email: "ann@demo.test"}, {Email: bounced}}, CC: []string{"eve@demo.test"},
	})
	require.NoError(t, err)
	id := r.id(accepted.ID)
	require.EqualValues(t, 3, r.done(id).Counts.Delivered)
	whole := id.Log(1).String()
	one := r.sim.Copies(whole)
	require.Len(t, one, 1)
	require.Equal(t, []string{first, "ann@demo.test"}, []string{one[0].Account, one[0].Address})
	require.Equal(t, []string{bounced, "eve@demo.test"}, one[0].Visible)
	again := r.sim.Copies(id.Log(2).String())
	if pair[0].Kind == simulator.SMTP { // its reply to the content is one for all addresses
		require.Len(t, r.sim.Copies(whole+"/"+bounced), 1)
		require.Empty(t, again)
	} else {
		require.Len(t, again, 1)
		require.Equal(t, []string{second, bounced}, []string{again[0].Account, again[0].Address})
	}
	require.Len(t, r.sim.Copies(whole+"/eve@demo.test"), 1)
	require.Empty(t, r.sim.Copies(id.Log(3).String()))
}

// ownHeaders returns header fields of a recipient that both providers of a pair take.
func ownHeaders(pair simulated.Pair) map[string]string {
	own := map[string]string{"X-Own": "№ {{order}}", "list-id": "<own.demo.test>"}
	for i := range pair {
		kind, _ := providers.Find(pair[i].Kind)
		if pair[i].Kind == simulator.Mailjet { // it refuses this one
			delete(own, "list-id")
		}
		if !kind.Carries.Headers {
			return nil
		}
	}
	return own
}

// refusedHere reports whether the log of a batch's only recipient says that a provider cannot take its mail.
func (r *rig) refusedHere(batch models.ID, provider string) bool {
	log, err := r.client.Log(r.t.Context(), batch.Log(1).String())
	require.NoError(r.t, err)
	return slices.ContainsFunc(log.Timeline, func(m client.Moment) bool {
		return m.Provider == provider && m.Class == string(models.RejectedHereClass)
	})
}

// carriersOf returns the names of the providers of a pair that can carry a mail.
func carriersOf(t *testing.T, pair simulated.Pair, m *providertest.Mail) (names []string) {
	t.Helper()
	for i := range pair {
		kind, ok := providers.Find(pair[i].Kind)
		require.True(t, ok)
		if kind.Carries.Refuses(&models.Batch{Content: m.Content, OwnHeaders: models.SameNames}) == "" {
			names = append(names, pair[i].Name)
		}
	}
	return names
}

// decoded returns a copy with decoded header fields in one spelling. It leaves out the declared differences of kinds of
// provider: the names of inline files, and the kind and the last one of the line breaks.
func decoded(t *testing.T, c *simulator.Copy) simulator.Copy {
	t.Helper()
	out, headers := *c, map[string]string{}
	for name, value := range c.Headers {
		text, err := new(mime.WordDecoder).DecodeHeader(value)
		require.NoError(t, err)
		headers[http.CanonicalHeaderKey(name)] = text
	}
	for _, text := range []*string{&out.Text, &out.HTML} {
		*text = strings.TrimRight(strings.ReplaceAll(*text, "\r\n", "\n"), "\n")
	}
	out.Headers, out.Attachments = headers, slices.Clone(c.Attachments)
	for n := range out.Attachments {
		if out.Attachments[n].ContentID != "" {
			out.Attachments[n].Filename = ""
		}
	}
	return out
}

// TestEnvelope requires that one mail with several addresses in to, cc and bcc goes to all in one call, through both
// kinds of provider. Those in bcc are hidden. A bounce which the other provider can cure reroutes the one address.
func TestEnvelope(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{KeepContent: true})
		r.serveHere()
		for first, second := range map[string]string{"sg": "mg", "mg": "sg"} {
			bounced := "blocked-" + first + "+1@demo.test"
			accepted, err := r.client.CreateBatch(t.Context(), client.NewBatch{
				From:    "Shop <shop@demo.test>",
				Subject: "Order {{order}}",
				Text:    "Order {{order}} of {{name}}",
				To: []client.Recipient{
					{Email: "ann-" + first + "@demo.test", Name: "Ann", Vars: map[string]any{"order": "A-1"}},
					{Email: bounced, Name: "Bob"},
				},
				Together:  true,
				CC:        []string{"eve-" + first + "@demo.test"},
				BCC:       []string{"lou-" + first + "@demo.test"},
				Providers: []string{first, second},
			})
			require.NoError(t, err)
			require.Equal(t, 4, accepted.Recipients)
			id := r.id(accepted.ID)
			require.EqualValues(t, 4, r.done(id).Counts.Delivered)
			whole := id.Log(1).String()
			to, visible := "ann-"+first+"@demo.test", []string{
				"ann-" + first + "@demo.test",
				bounced,
				"eve-" + first + "@demo.test",
			}
			for copyID, want := range map[string]simulator.Copy{
				whole:                                  {Account: first, Address: to},
				whole + "/" + bounced:                  {Account: first, Address: bounced},
				whole + "/eve-" + first + "@demo.test": {Account: first, Address: visible[2], Role: "cc"},
				whole + "/lou-" + first + "@demo.test": {Account: first, Address: "lou-" + first + "@demo.test", Role: "bcc"},
				id.Log(2).String():                     {Account: second, Address: bounced},
				id.Log(3).String():                     {},
				id.Log(4).String():                     {},
			} {
				copies := r.sim.Copies(copyID)
				if want.Address == "" {
					require.Empty(t, copies, copyID)
					continue
				}
				require.Len(t, copies, 1, copyID)
				c := copies[0]
				require.Equal(t, []string{want.Account, want.Address, want.Role}, []string{c.Account, c.Address, c.Role})
				require.Equal(t, "Order A-1, Order A-1 of Ann", c.Subject+", "+c.Text)
				others := slices.DeleteFunc(slices.Clone(visible), func(a string) bool { return a == c.Address })
				if c.Account == second {
					others = nil
				}
				require.Equal(t, others, c.Visible, copyID)
			}
			log, err := r.client.Log(t.Context(), id.Log(2).String())
			require.NoError(t, err)
			require.Equal(t, "to", log.Role)
			require.Equal(t, []string{first, second}, log.Route)
			alone := func(m client.Moment) bool { return strings.Contains(m.Because, "sent to this address alone") }
			require.True(t, slices.ContainsFunc(log.Timeline, alone), "%+v", log.Timeline)
		}
	})
}
