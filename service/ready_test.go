package service

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// pingedStore counts pings.
type pingedStore struct {
	models.Store
	pings atomic.Int64
}

func (s *pingedStore) Transients(context.Context, string) (map[string][]byte, error) { return nil, nil }

func (s *pingedStore) Documents(context.Context, string, string, string, int) ([]models.Document, error) {
	return nil, nil
}

func (s *pingedStore) Commands(context.Context, int, int) ([]models.Command, error) { return nil, nil }

func (s *pingedStore) Ping(context.Context) error { s.pings.Add(1); return nil }

type pingedBroker struct{ models.Broker }

func (pingedBroker) Ping(context.Context) error { return nil }

// TestReadinessIsShared: however many ask, the store is asked once a second.
func TestReadinessIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := new(pingedStore)
		s := New(Deps{Store: store, Broker: pingedBroker{}, Providers: []models.Provider{{Name: "sg"}},
			Config: Config{Sole: true}})
		defer s.Close()
		for want := range int64(3) {
			for range 20 {
				require.True(t, s.Ready(t.Context()).Ready)
			}
			require.Equal(t, want+1, store.pings.Load())
			time.Sleep(time.Second)
		}
	})
}
