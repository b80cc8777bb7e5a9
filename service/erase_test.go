package service

import (
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

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/drafts"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestErasureReachesRooms: each room loses an address that was stored in it, in any case, and keeps another one.
func TestErasureReachesRooms(t *testing.T) {
	t.Parallel()
	const user = "aaaa"
	ctx, store := t.Context(), memory.Open(t)
	require.NoError(t, store.CreateUser(ctx, models.User{ID: user, Name: "ada", Created: time.Now()}))
	s := New(Deps{Store: store, Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir(), Sole: true}})
	t.Cleanup(s.Close)
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
	for _, r := range s.Erasures.Rooms {
		gone, kept := r.Name+"@gone.test", r.Name+"@kept.test"
		require.Contains(t, fill, r.Name, "store an address in the new room, so that this test erases it")
		require.NoError(t, errors.Join(fill[r.Name](gone), fill[r.Name](kept)))
		require.True(t, holds(r.Name, gone), r.Name)
		for out := (client.Erasure{}); !out.Done; { // a busy machine needs several parts
			var err error
			out, _, err = s.Erasures.Address(ctx, operator, strings.ToUpper(gone), out.Next, "", Repeat{})
			require.NoError(t, err)
		}
		require.False(t, holds(r.Name, gone), r.Name)
		require.True(t, holds(r.Name, kept), r.Name)
		delete(fill, r.Name)
	}
	require.Empty(t, fill, "an erasure does not reach these rooms")
}

// documents says of the packages with documents of their own why an erasure does not change them, unless they are rooms
// of it.
var documents = map[string]string{
	"models":             "it stores documents for the others",
	"models/clientid":    "hashes only",
	"models/documents":   "it stores documents for the others",
	"models/endpoint":    "settings: addresses are senders, and no recipients",
	"models/suppression": "what is not published yet, for an hour at most",
	"service/endpoints":  "as models/endpoint",
	"service/quota":      "numbers only",
	"service/templates":  "texts for all recipients",
}

// TestErasureReachesDocuments: a package that begins to store documents is a room of an erasure, or says why not.
func TestErasureReachesDocuments(t *testing.T) {
	t.Parallel()
	s := New(Deps{Store: memory.Open(t), Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir()}})
	t.Cleanup(s.Close)
	root, rooms := os.DirFS(".."), map[string]bool{}
	for _, r := range s.Erasures.Rooms {
		rooms[r.Name] = true
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
		require.NotEqual(t, rooms[path.Base(dir)], documents[dir] != "",
			"%s stores documents: add it to the rooms of an erasure, or say here why not", dir)
	}
	for dir := range documents {
		require.True(t, found[dir], "%s stores no documents any more", dir)
	}
}

// storesDocuments finds the calls that store documents, and the types of documents.
var storesDocuments = regexp.MustCompile(`\.(ChangeDocument|PutDocuments?)\(|documents\.Of\[`)

// TestErasureInTheAuditTrail: the audit trail says that an address was erased, by whom and why,
// and names only its domain.
func TestErasureInTheAuditTrail(t *testing.T) {
	t.Parallel()
	s := New(
		Deps{Store: memory.Open(t), Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir(), Sole: true}},
	)
	t.Cleanup(s.Close)
	boss := Caller{By: "cli:zoe", Operator: true}
	out, _, err := s.Erasures.Address(t.Context(), boss, "Ann <Ann@X.test>", "", "asked", Repeat{})
	require.NoError(t, err)
	for !out.Done { // a part takes a few seconds at most, however busy the machine is
		out, _, err = s.Erasures.Address(t.Context(), boss, "ann@x.test", out.Next, "asked", Repeat{})
		require.NoError(t, err)
	}
	audit, err := s.Audit.Find(t.Context(), boss, audit.Filter{}, Page{})
	require.NoError(t, err)
	var kinds []models.CommandKind
	for _, e := range audit.Commands {
		kinds = append(kinds, e.Command)
		require.Equal(t, "@x.test", e.Subject)
		require.Equal(t, "asked", e.Why)
		require.Equal(t, "cli:zoe", e.By)
	}
	require.Equal(t, []models.CommandKind{models.AddressErased, models.EraseAddress}, kinds)
	_, _, err = s.Erasures.Address(t.Context(), Caller{User: "u"}, "ann@x.test", "", "", Repeat{})
	require.ErrorContains(t, err, "operate")
}
