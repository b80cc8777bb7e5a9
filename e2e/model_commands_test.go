//go:build full

package e2e

import (
	"context"
	"net/http"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// control stops, resumes or cancels a batch, with one request or the same twice.
func (m *model) control(t *rapid.T) {
	b, verb := m.any(t), rapid.SampledFrom([]string{"stop", "stop", "resume", "resume", "cancel"}).Draw(t, "command")
	key := m.newKey("command")
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		status := m.must(t, key, m.commandBatch(verb, b.id),
			http.StatusOK, http.StatusConflict, http.StatusTooManyRequests).Status
		if status == http.StatusTooManyRequests {
			if verb != "resume" {
				t.Fatalf("%s was refused", verb)
			}
			return
		}
		if status == http.StatusConflict { // only of a batch that was cancelled
			if !b.cancelled || verb == "cancel" {
				t.Fatalf("%s was refused", verb)
			}
			return
		}
	}
	switch verb {
	case "cancel":
		b.cancelled = true
	default:
		b.stopped = verb == "stop"
	}
}

// commandBatch returns the request of a command about a batch.
func (m *model) commandBatch(verb string, id models.ID) request {
	command := map[string]func(context.Context, string, string, ...client.CallOption) (client.BatchControlResult, error){
		"stop":    m.client.StopBatch,
		"resume":  m.client.ResumeBatch,
		"cancel":  m.client.CancelBatch,
		"try":     m.client.TryBatch,
		"retry":   m.client.RetryBatch,
		"release": m.client.ReleaseBatch,
	}[verb]
	return func(ctx context.Context, options ...client.CallOption) error {
		_, err := command(ctx, id.String(), "the model", options...)
		return err
	}
}

// retry sends again what failed or is held.
func (m *model) retry(t *rapid.T) {
	b, verb := m.any(t), rapid.SampledFrom([]string{"try", "retry", "release"}).Draw(t, "how")
	status := m.must(t, "", m.commandBatch(verb, b.id),
		http.StatusOK, http.StatusConflict, http.StatusTooManyRequests).Status
	b.released = b.released || verb == "release" && status == http.StatusOK
}

func (m *model) block(t *rapid.T) {
	rule := rapid.SampledFrom([]client.NewBlock{
		{Provider: "sg"},
		{Sender: "@model.test"},
		{Domain: "model.test"},
	}).Draw(t, "rule")
	m.addBlock(t, rule)
}

func (m *model) addBlock(t *rapid.T, rule client.NewBlock) {
	m.must(t, "", func(ctx context.Context, options ...client.CallOption) error {
		b, err := m.client.AddBlock(ctx, rule, options...)
		if err == nil {
			m.blocks = append(m.blocks, b.ID)
		}
		return err
	}, http.StatusOK)
}

func (m *model) unblock(t *rapid.T) {
	for _, id := range m.blocks {
		m.must(t, "", func(ctx context.Context, options ...client.CallOption) error {
			_, err := m.client.RemoveBlock(ctx, id, "", options...)
			return err
		}, http.StatusOK, http.StatusNotFound)
	}
	m.blocks = nil
}

func (m *model) switchProvider(t *rapid.T) {
	name := rapid.SampledFrom([]string{"sg", "mg"}).Draw(t, "provider")
	verb := rapid.SampledFrom([]string{"offline", "online", "drain", "probe"}).Draw(t, "command")
	allowed := []int{http.StatusOK}
	if verb == "probe" {
		allowed = append(allowed, http.StatusConflict) // it is offline
	}
	m.must(t, "", m.commandProvider(verb, name), allowed...)
}

// commandProvider returns the request of a command about a provider.
func (m *model) commandProvider(verb, name string) request {
	command := map[string]func(context.Context, string, string, ...client.CallOption) (client.ControlResult, error){
		"offline": m.client.ProviderOffline,
		"online":  m.client.ProviderOnline,
		"drain":   m.client.ProviderDrain,
		"probe":   m.client.ProviderProbe,
	}[verb]
	return func(ctx context.Context, options ...client.CallOption) error {
		_, err := command(ctx, name, "", options...)
		return err
	}
}
