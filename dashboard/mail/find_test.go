package mail

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/walk"
)

// TestEntriesOfPager: a list whose length is not known says how many entries it has at least.
func TestEntriesOfPager(t *testing.T) {
	t.Parallel()
	info := &mail.PageInfo{First: 51, Next: "more", AtLeast: walk.MaxCounted + 1}
	long := pagerOf("/logs", url.Values{}, "", info, 50)
	require.Equal(t, "more than 1\u202f000", long.Entries())
	long.AtLeast = 320
	require.Equal(t, "at least 320", long.Entries())
	long.AtLeast = 100
	require.Empty(t, long.Entries(), "no more than on the page")
}
