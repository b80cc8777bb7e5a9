package memory

import (
	"context"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
	"github.com/safedelivr/safedelivr/store/shapes/shapestest"
)

func TestShapes(t *testing.T) {
	shapestest.Run(t, func(t *testing.T) (shapes.Engine, []*shapes.Table) { return Open(t).Engine(), store.Tables() })
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) models.Store { return Open(t) })
	storetest.RunProcesses(t, func(*testing.T) storetest.Processes {
		e := newEngine()
		process := func(off time.Duration) models.Store {
			return store.New(e, store.Options{Now: func() time.Time { return time.Now().Add(off) }})
		}
		return storetest.Processes{
			WithClock: process, Other: func() models.Store { return process(0) },
			Sweep: func(context.Context, time.Time) error { return nil },
		}
	})
}
