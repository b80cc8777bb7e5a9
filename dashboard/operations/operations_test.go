package operations

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/settings"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// TestManyParked checks that the page says so if it does not list all parked messages.
func TestManyParked(t *testing.T) {
	t.Parallel()
	view := &operationsView{
		Parked: client.ParkedPage{Parked: []client.ParkedMessage{{ID: "7", Key: "batch.x", Why: "cannot be read"}}},
	}
	shown, err := views.Parts("operations", view, "parked", "sums")
	require.NoError(t, err)
	require.NotContains(t, string(shown["parked"])+string(shown["sums"]), "more")
	view.Parked.Next = "x"
	shown, err = views.Parts("operations", view, "parked", "sums")
	require.NoError(t, err)
	require.Contains(t, string(shown["parked"]), "safedelivr parked list --all")
	require.Contains(t, string(shown["sums"]), "1 or more")
}

// TestUsersAndKeysAreShown: the pages of a user and of all keys show each field of them.
func TestUsersAndKeysAreShown(t *testing.T) {
	t.Parallel()
	render := func(name string, view any) string {
		parts, err := views.Parts(name, web.Page{Data: view}, "content")
		require.NoError(t, err)
		return string(parts["content"])
	}
	user := func(u *client.User) string {
		return render("user", &userView{User: *u, DisabledBy: u.DisabledBy, Form: &web.Form{}})
	}
	testkit.Shown(t, user, nil, func(u *client.User) { u.AnySender = false }, func(*client.User) {})
	key := func(k *client.Key) string { return render("keys", &keysView{Keys: []settings.KeyRow{{Key: *k}}}) }
	testkit.Shown(t, key, nil, func(*client.Key) {})
}
