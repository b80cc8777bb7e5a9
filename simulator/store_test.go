package simulator

import (
	"fmt"
	"sync"
	"testing"
)

// TestCountingConcurrently sends overlapping sets of recipients through both
// accounts at once; the counts must be exact.
func TestCountingConcurrently(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	// Worker i sends the ids r0 to r(50*i-1), alternately through sg and mg.
	const workers = 8
	want := map[string]map[string]int{}
	var wg sync.WaitGroup
	for i := 1; i <= workers; i++ {
		account := []string{"sg", "mg"}[i%2]
		n := 50 * i
		for k := range n {
			id := fmt.Sprintf("r%d", k)
			if want[id] == nil {
				want[id] = map[string]int{}
			}
			want[id][account]++
		}
		wg.Go(func() { r.send(t, account, "r", addresses(n)...) })
	}
	wg.Go(func() { // reading meanwhile
		for range 20 {
			r.EachCopy(func(string, map[string]int) {})
			r.Copies("r3")
			r.Stats("")
			r.CallLog("sg")
		}
	})
	wg.Wait()
	r.flush(t)

	seen := 0
	r.EachCopy(func(id string, per map[string]int) {
		seen++
		if fmt.Sprint(per) != fmt.Sprint(want[id]) {
			t.Errorf("%s: %v, want %v", id, per, want[id])
		}
		if n := len(r.Copies(id)); n != per["sg"]+per["mg"] {
			t.Errorf("%s: %d copies, want %v", id, n, per)
		}
	})
	if seen != len(want) {
		t.Errorf("%d ids, want %d", seen, len(want))
	}
	stats := map[string]Stats{}
	for _, account := range []string{"sg", "mg", ""} {
		var copies, distinct, doubled int64
		for _, per := range want {
			n := int64(per[account])
			if account == "" {
				n = int64(per["sg"] + per["mg"])
			}
			copies += n
			if n > 0 {
				distinct++
			}
			if n > 1 {
				doubled++
			}
		}
		st := r.Stats(account)
		stats[account] = st
		if st.Copies != copies || st.Accepted != copies || st.Distinct != distinct || st.Doubled != doubled || st.EventsOK != 2*copies || st.EventsPending != 0 {
			t.Errorf("%q: %+v, want %d copies, %d distinct, %d doubled", account, st, copies, distinct, doubled)
		}
	}
	if stats[""].Calls != workers || stats["sg"].Posts+stats["mg"].Posts != stats[""].Posts {
		t.Errorf("stats %+v", stats)
	}
}

// TestIndex holds many keys, with tags that collide.
func TestIndex(t *testing.T) {
	t.Parallel()
	a, b := &account{name: "a"}, &account{name: "b"}
	x, o := newIndex(), &keys{}
	const n = 20_000
	for round := range 3 {
		for i := range n {
			key := fmt.Sprint(i)
			acc := []*account{a, b}[(round+i)%2]
			o.keys, o.accounts = append(o.keys, key), append(o.accounts, acc)
			if round == 2 && i%10 != 0 {
				continue
			}
			here, all := x.add(o, []byte(key), uint32(round*n+i), acc)
			if all != round || here != round/2 {
				t.Fatalf("%s in round %d: %d %d", key, round, here, all)
			}
		}
	}
	per := map[string]int{}
	for i := range n {
		refs := x.refs(o, fmt.Append(nil, i))
		want := 2
		if i%10 == 0 {
			want = 3
		}
		first := x.counts(o, fmt.Append(nil, i), uint32(i), per)
		if len(refs) != want || refs[0] != uint32(i) || refs[1] != uint32(n+i) || !first || per["a"]+per["b"] != want {
			t.Fatalf("%d: %v %v %v", i, refs, first, per)
		}
		if x.counts(o, fmt.Append(nil, i), uint32(n+i), per) {
			t.Fatalf("%d: the second copy is no first one", i)
		}
	}
	if x.refs(o, []byte("none")) != nil || x.counts(o, []byte("none"), 0, per) {
		t.Error("found what is not there")
	}
}

// keys is an owner with a list.
type keys struct {
	keys     []string
	accounts []*account
}

func (k *keys) keyIs(ref uint32, key []byte) bool { return k.keys[ref] == string(key) }
func (k *keys) accountOf(ref uint32) *account     { return k.accounts[ref] }

// TestSameAddress: one id with very many copies stays fast.
func TestSameAddress(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	defer s.Close()
	if err := s.AddAccount(Account{Name: "x", Kind: SendGrid, Key: "k"}); err != nil {
		t.Fatal(err)
	}
	a := s.account("x")
	const n = 50_000
	for range n {
		var p packer
		p.end()
		p.copy(outDeliver, 0, 0, []byte("Same@example.com"))
		p.end()
		h := &head{}
		s.store.Load().add(p.mailing(a, h), a.tally.Load(), s.total.Load())
	}
	if st := s.Stats("x"); st.Copies != n || st.Distinct != 1 || st.Doubled != 1 {
		t.Errorf("stats %+v", st)
	}
	if list := s.Copies("same@example.com"); len(list) != n || list[0].Address != "Same@example.com" {
		t.Errorf("%d copies", len(list))
	}
	if list := s.Copies("SAME@example.com"); len(list) != n {
		t.Errorf("%d copies", len(list))
	}
}

// TestManyKeys: metadata with more keys than are kept in a list.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	m := sgMail("r", "a@example.com", "b@example.com")
	for i := range 40 {
		m.Personalizations[i%2].SetCustomArg(fmt.Sprintf("key%d", i), fmt.Sprint(i))
	}
	if resp, err := r.sg(t.Context(), "sg", m); err != nil || resp.StatusCode != 202 {
		t.Fatalf("%v %+v", err, resp)
	}
	r.flush(t)
	if c := r.Copies("r1"); len(c) != 1 || len(c[0].Metadata) != 22 || c[0].Metadata["key39"] != "39" || c[0].Metadata["key38"] != "" {
		t.Errorf("copies %+v", c)
	}
	for _, e := range r.hooks.of("sg") {
		if e.str("sd_r") == "r0" && (e.str("key38") != "38" || e.str("key39") != "") {
			t.Errorf("event %v", e)
		}
	}
}
