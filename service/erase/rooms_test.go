package erase

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/service/drafts"
	"github.com/safedelivr/safedelivr/service/suppressions"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestRooms: each room loses an address that was stored in it, in any case, and keeps another one.
func TestRooms(t *testing.T) {
	t.Parallel()
	const user = "aaaa"
	ctx, store := t.Context(), memory.Open(t)
	require.NoError(t, store.CreateUser(ctx, models.User{ID: user, Name: "ada", Created: time.Now()}))
	s := New(Deps{
		Store: store, Suppressions: suppressions.New(suppressions.Deps{Store: store}),
		Drafts: drafts.New(store, func(context.Context, string) error { return nil }),
	})
	fill := map[string]func(address string) error{
		"suppressions": func(address string) error {
			e := models.NewSuppression(address, models.Manual, "", time.Now())
			return errors.Join(store.PutSuppressions(ctx, user, e), store.PutSuppressions(ctx, models.EveryonesList, e))
		},
		"softbounce": func(address string) error {
			b := softbounce.Bounce{Log: models.NewBatchID(time.Now()).Log(1), At: time.Now(), Provider: "sg"}
			of := map[models.AddressHash][]softbounce.Bounce{models.HashAddress(address): {b}}
			return softbounce.Note(ctx, store, user, 3, of)
		},
		"drift": func(address string) error {
			e := drift.Entry{Email: address, Provider: "sg", List: "bounces"}
			return drift.Put(ctx, store, []drift.Stored{{Entry: e, Version: 1}})
		},
		"drafts": func(address string) error {
			d := drafts.Draft{ID: drafts.NewID(), Fields: map[string]string{"to": address + "\ncarl@x.test", "cc": address}}
			_, err := s.Drafts.Save(ctx, user, d)
			return err
		},
	}
	holds := func(room, address string) bool {
		if hash := models.HashAddress(address); room == "softbounce" {
			return store.Holds(hex.EncodeToString(hash[:]))
		}
		return store.Holds(address)
	}
	for _, r := range s.rooms() {
		gone, kept := r.name+"@gone.test", r.name+"@kept.test"
		require.Contains(t, fill, r.name, "store an address in the new room, so that this test erases it")
		require.NoError(t, errors.Join(fill[r.name](gone), fill[r.name](kept)))
		require.True(t, holds(r.name, gone), r.name)
		require.NoError(t, r.erase(ctx, strings.ToUpper(gone)))
		require.False(t, holds(r.name, gone), r.name)
		require.True(t, holds(r.name, kept), r.name)
		delete(fill, r.name)
	}
	require.Empty(t, fill, "an erasure does not reach these rooms")
}

// documents says of each package with documents of its own why an erasure does not change them. Empty: it is a room.
var documents = map[string]string{
	"models":             "it stores documents for the others",
	"models/clientid":    "hashes only",
	"models/drift":       "",
	"models/endpoint":    "settings: addresses are senders, and no recipients",
	"models/softbounce":  "",
	"models/suppression": "what is not published yet, for an hour at most",
	"service/drafts":     "",
	"service/quota":      "numbers only",
	"service/templates":  "texts for all recipients",
}

// TestDocuments: a package that begins to store documents is a room, or says why not.
func TestDocuments(t *testing.T) {
	t.Parallel()
	root, rooms := os.DirFS("../.."), map[string]bool{}
	for _, r := range New(Deps{Drafts: new(drafts.Library)}).rooms() {
		rooms[r.name] = true
	}
	found := map[string]bool{}
	for _, below := range []string{
		"api", "consumers", "dashboard", "internal", "models", "service", "unsubscribe", "webhooks",
	} {
		require.NoError(t, fs.WalkDir(root, below, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
				strings.Contains(name, "storetest/") {
				return err
			}
			if text, err := fs.ReadFile(root, name); err != nil || storesDocuments.Match(text) {
				found[path.Dir(name)] = true
				return err
			}
			return nil
		}))
	}
	for dir := range found {
		why, ok := documents[dir]
		require.True(t, ok, "%s stores documents: add it to the rooms of an erasure, or say here why not", dir)
		require.Equal(t, why == "", rooms[path.Base(dir)], dir)
	}
	require.Len(t, documents, len(found), "a package stores no documents any more")
}

// storesDocuments finds the calls that store documents.
var storesDocuments = regexp.MustCompile(`\.(ChangeDocument|PutDocuments?)\(`)
