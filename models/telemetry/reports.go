package telemetry

import (
	"context"
	"encoding/json"
)

// Reports returns all reports of a kind by name. It leaves out those that it cannot decode: a newer process wrote them.
func Reports[T any](ctx context.Context, store interface {
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}, kind string,
) (map[string]T, error) {
	all, err := store.Transients(ctx, kind)
	if err != nil {
		return nil, err
	}
	out := make(map[string]T, len(all))
	for name, raw := range all {
		var v T
		if json.Unmarshal(raw, &v) == nil {
			out[name] = v
		}
	}
	return out, nil
}
