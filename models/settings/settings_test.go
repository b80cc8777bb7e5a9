package settings_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/settings"
)

type section struct {
	Hold   time.Duration `koanf:"hold" range:">0" default:"5m"`
	Every  time.Duration `koanf:"every" range:"0.." default:"1h"`
	Weight int           `koanf:"weight" range:"1..1000" default:"3"`
	Share  float64       `koanf:"share" range:"0..1" default:"0.5"`
	Words  []string      `koanf:"words" oneof:"a,b" default:"a,b"`
	On     bool          `koanf:"on" default:"true"`
	Name   string        `koanf:"name"`
}

type config struct {
	section
	Section section `koanf:"section"`
	Other   *section
}

func TestDefault(t *testing.T) {
	t.Parallel()
	want := section{Hold: 5 * time.Minute, Every: time.Hour, Weight: 3, Share: 0.5, Words: []string{"a", "b"}, On: true}
	require.Equal(t, want, settings.Default[section]())
	require.Equal(t, want, settings.Default[config]().Section)
}

// TestFill: what is set stays, and so does a 0 that the range has.
func TestFill(t *testing.T) {
	t.Parallel()
	c := section{Weight: 7}
	settings.Fill(&c)
	require.Equal(t, section{Hold: 5 * time.Minute, Weight: 7, Words: []string{"a", "b"}, On: true}, c)
}

func TestWrongDefault(t *testing.T) {
	t.Parallel()
	type tooHigh struct {
		Share float64 `range:"0..1" default:"2"`
	}
	require.PanicsWithValue(t, "settings: the default of Share: must be from 0 to 1",
		func() { settings.Default[tooHigh]() })
	type noNumber struct {
		Weight int `default:"x"`
	}
	require.PanicsWithValue(t, `settings: the default of Weight: "x" is not a whole number`,
		func() { settings.Default[noNumber]() })
}
