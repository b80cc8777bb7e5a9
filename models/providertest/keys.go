package providertest

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// keyed is implemented by the adapter of a provider with idempotency keys.
type keyed interface{ KeyLifetime() time.Duration }

// testKeys makes calls twice, the second time by another adapter, as a process does after a restart. Both have the same
// bytes and the same key, and other calls have another key. A provider without idempotency keys gets none.
func testKeys(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	k, ok := p.(keyed)
	if ok && k.KeyLifetime() < time.Minute {
		t.Errorf("keys are known for %v", k.KeyLifetime())
	}
	again := call(2)
	again.Attempt++
	var keys []string
	for _, c := range []*models.Call{call(2), again, chunk(1, 2), SampleCall(1)} {
		before := len(rec.keys)
		other := adapter(t, s, rec.url)
		p.Send(t.Context(), c)
		other.Send(t.Context(), c)
		if first, second := rec.keys[before], rec.keys[before+1]; first != second || (first != "") != ok {
			t.Errorf("the same call has the keys %q and %q", first, second)
		}
		keys = append(keys, rec.keys[before])
		first, _ := p.(models.Composer).Compose(c)
		second, _ := other.(models.Composer).Compose(c)
		if ok && !bytes.Equal(first.Body, second.Body) {
			t.Errorf("the same call has other bytes:\n%s\n%s", first.Body, second.Body)
		}
	}
	slices.Sort(keys)
	if ok && len(slices.Compact(keys)) != 4 {
		t.Errorf("other calls have the same key: %q", keys)
	}
}
