package models

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeftOut(t *testing.T) {
	t.Parallel()
	c := &Content{Tags: []string{"a", "b", "c", "d"}}
	require.Empty(t, Capabilities{Tags: 4, Names: true}.LeftOut(c))
	require.Equal(t, "1 of 4 tags: it takes 3", Capabilities{Tags: 3, Names: true}.LeftOut(c))
	require.Equal(t, "the names of recipients", Capabilities{Tags: 4}.LeftOut(c))
	spaces := "commas and semicolons in names: they become spaces"
	without := Capabilities{Tags: 4, Names: true}
	require.Empty(t, without.LeftOut(c, "Ann Smith"))
	require.Equal(t, spaces, without.LeftOut(c, "", "Smith, Ann"))
	require.Empty(t, Capabilities{Tags: 4, Names: true, NameMarks: true}.LeftOut(c, "Smith, Ann"))
	c.From.Name = "Smith; Co"
	require.Equal(t, spaces, without.LeftOut(c))
	c.From.Name, c.ReplyTo = "", []Address{{Name: "a,b"}}
	require.Equal(t, spaces, without.LeftOut(c))
	c.ReplyTo = nil
	require.Equal(t, "the names of recipients", Capabilities{Tags: 4}.LeftOut(c, "a,b"))
}
