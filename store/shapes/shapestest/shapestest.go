// Package shapestest is the conformance suite of shapes.Engine. Every engine runs all of it.
package shapestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// suite is an engine, and a table of each kind.
type suite struct {
	shapes.Engine
	rows, first, fenced, indexed, log *shapes.Table

	hides bool // a removed row may hide others: see shapes.Stamper
}

// Run checks every promise. open returns an engine and its tables, empty or not. It closes the engine in t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) (shapes.Engine, []*shapes.Table)) {
	t.Helper()
	e, tables := open(t)
	pick := func(which func(t *shapes.Table) bool) *shapes.Table {
		i := slices.IndexFunc(tables, which)
		require.GreaterOrEqual(t, i, 0, "no table of a kind")
		return tables[i]
	}
	s := &suite{
		Engine:  e,
		rows:    pick(func(t *shapes.Table) bool { return *t == shapes.Table{Name: t.Name} }),
		first:   pick(func(t *shapes.Table) bool { return t.FirstStays }),
		fenced:  pick(func(t *shapes.Table) bool { return t.Fenced }),
		indexed: pick(func(t *shapes.Table) bool { return t.Bucket > 0 }),
		log:     pick(func(t *shapes.Table) bool { return t.Log && t.Group == 0 }),
	}
	_, s.hides = e.(shapes.Stamper)
	decided, vetoed, long := *s, *s, *s
	decided.rows = pick(func(t *shapes.Table) bool { return t.Decided && !t.Vetoed })
	long.log = pick(func(t *shapes.Table) bool { return t.Group > 0 && t.Group < 1000 })
	vetoed.rows = pick(func(t *shapes.Table) bool { return t.Vetoed })
	for _, group := range []struct {
		name   string
		on     *suite
		checks []check
	}{
		{"Rows", s, rowChecks}, {"Decided", &decided, decidedChecks}, {"Vetoed", &vetoed, vetoChecks},
		{"Log", s, logChecks}, {"LongLog", &long, longChecks},
	} {
		for _, c := range group.checks {
			t.Run(group.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, group.on)
			})
		}
	}
}

// check is a test of a shape.
type check struct {
	name string
	run  func(t *testing.T, s *suite)
}

var (
	rowChecks = []check{
		{"HighestVersionStays", testVersions},
		{"FirstStays", testFirstStays},
		{"ManyRowsOfOneCall", testManyRows},
		{"EndedRowHidesNothing", testEnded},
		{"CallsInAnyOrderDoNotWaitForEachOther", testPutsAtOnce},
		{"Swap", testSwap},
		{"OneOfManyWins", testSwapRace},
		{"Also", testAlso},
		{"Many", testSwapMany},
		{"Find", testFind},
		{"Scan", testScan},
		{"Remove", testRemove},
		{"Fence", testFence},
		{"FenceRace", testFenceRace},
		{"EndedContext", testEndedContext},
		{"ContextEndsMeanwhile", testContextEnds},
	}
	decidedChecks = []check{
		{"HighestVersionStays", testVersions},
		{"EndedRowHidesNothing", testEnded},
		{"Swap", testSwap},
		{"OneOfManyWins", testSwapRace},
		{"Also", testAlso},
		{"Many", testSwapMany},
		{"Find", testFind},
	}
	vetoChecks = []check{{"Swap", testVeto}, {"Race", testVetoRace}}
	logChecks  = []check{
		{"Append", testAppend},
		{"OneOfManyWins", testAppendRace},
		{"Trim", testTrim},
		{"Rewrite", testRewrite},
		{"ReadWith", testReadWith},
	}
	longChecks = []check{
		{"Append", testAppend},
		{"OneOfManyWins", testAppendRace},
		{"Trim", testTrim},
		{"Groups", testGroups},
	}
)

// newPart returns a partition that no other test uses.
func newPart() []byte { return []byte(models.NewUserID()) }

func (s *suite) row(part []byte, key string, version int64, value string) shapes.Put {
	return shapes.Put{Table: s.rows, Row: shapes.Row{Part: part, Key: []byte(key), Version: version, Value: []byte(value)}}
}

// later returns a version that no removed row hides.
func (s *suite) later(t *testing.T) int64 {
	t.Helper()
	stamps, ok := s.Engine.(shapes.Stamper)
	if !ok {
		return 1
	}
	version, err := stamps.Stamp(t.Context())
	require.NoError(t, err)
	return version
}

// at returns the row with a key, or a row without a version.
func (s *suite) at(t *testing.T, table *shapes.Table, part []byte, key string) shapes.Row {
	t.Helper()
	found, err := s.Find(t.Context(), shapes.Address{Table: table, Part: part, Key: []byte(key)})
	require.NoError(t, err)
	for _, r := range found[0] {
		if string(r.Key) == key {
			return r
		}
	}
	return shapes.Row{}
}

func testVersions(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	require.Zero(t, s.at(t, s.rows, part, "k").Version)
	for _, put := range []struct {
		version int64
		value   string
		want    string
	}{
		{2, "b", "b"}, {1, "z", "b"}, {2, "a", "b"}, {2, "b", "b"}, {2, "ba", "ba"}, {3, "", ""}, {2, "z", ""}, {9, "n", "n"},
	} {
		require.NoError(t, s.Put(ctx, s.row(part, "k", put.version, put.value)))
		require.Equal(t, put.want, string(s.at(t, s.rows, part, "k").Value), "%v", put)
	}
	gone := s.row(part, "k", 10, "kept")
	gone.Gone = true
	require.NoError(t, s.Put(ctx, gone, s.row(part, "k", 9, "late")))
	r := s.at(t, s.rows, part, "k")
	require.True(t, r.Gone)
	require.EqualValues(t, 10, r.Version)
	rows, err := s.Scan(ctx, s.rows, part, shapes.Range{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, rows, "a row that is gone")
	require.NoError(t, s.Put(ctx, s.row(part, "k", 11, "back")))
	require.Equal(t, "back", string(s.at(t, s.rows, part, "k").Value))
	require.NoError(t, s.Put(ctx))
}

func testFirstStays(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	put := func(version int64, value string) shapes.Put {
		p := s.row(part, "k", version, value)
		p.Table = s.first
		return p
	}
	require.NoError(t, s.Put(ctx, put(1, "first"), put(1, "second")))
	require.NoError(t, s.Put(ctx, put(1, "zzz")))
	require.Equal(t, "first", string(s.at(t, s.first, part, "k").Value))
	refused, err := s.Swap(ctx, []shapes.Swap{{Put: put(2, "changed"), Was: 1}})
	require.NoError(t, err)
	require.Empty(t, refused)
	require.NoError(t, s.Put(ctx, put(1, "zzz")))
	require.Equal(t, "changed", string(s.at(t, s.first, part, "k").Value))
}

func testManyRows(t *testing.T, s *suite) {
	ctx := t.Context()
	var puts []shapes.Put
	var at []shapes.Address
	for i := range 1200 {
		part := newPart()
		puts = append(puts, s.row(part, "k", 1, fmt.Sprint(i)))
		at = append(at, shapes.Address{Table: s.rows, Part: part, Key: []byte("k")})
	}
	require.NoError(t, s.Put(ctx, puts...))
	require.NoError(t, s.Put(ctx, puts...), "a repeat")
	slices.Reverse(at)
	at = append(at, shapes.Address{Table: s.rows, Part: newPart()}, shapes.Address{Table: s.first, Part: newPart()})
	found, err := s.Find(ctx, at...)
	require.NoError(t, err)
	require.Len(t, found, len(at))
	for i := range 1200 {
		require.Len(t, found[i], 1)
		require.Equal(t, fmt.Sprint(1199-i), string(found[i][0].Value))
		require.Equal(t, at[i].Part, found[i][0].Part)
	}
	require.Empty(t, found[1200])
	require.Empty(t, found[1201])
	found, err = s.Find(ctx)
	require.NoError(t, err)
	require.Empty(t, found)
}

func testEnded(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	short, long := s.row(part, "short", 9, "v"), s.row(part, "long", 9, "v")
	short.TTL, long.TTL = time.Second, time.Hour
	require.NoError(t, s.Put(ctx, short, long))
	left := s.at(t, s.rows, part, "long").TTL
	require.LessOrEqual(t, left, time.Hour)
	require.Greater(t, left, 59*time.Minute)
	require.Eventually(t, func() bool { return s.at(t, s.rows, part, "short").Version == 0 }, time.Minute, 20*time.Millisecond)
	rows, err := s.Scan(ctx, s.rows, part, shapes.Range{Limit: 10})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	refused, err := s.Swap(ctx, []shapes.Swap{{Put: s.row(part, "short", 10, "late"), Was: 9}})
	require.NoError(t, err)
	require.Len(t, refused, 1, "it has no version any more")
	require.Zero(t, refused[0].There.Version)
	low := int64(1)
	if s.hides {
		low = 10
	}
	require.NoError(t, s.Put(ctx, s.row(part, "short", low, "new")))
	r := s.at(t, s.rows, part, "short")
	require.Equal(t, "new", string(r.Value))
	require.Zero(t, r.TTL, "for ever")
	require.NoError(t, s.Sweep(ctx))
	require.Equal(t, "new", string(s.at(t, s.rows, part, "short").Value))
}

// testPutsAtOnce writes the same rows in different orders at once.
func testPutsAtOnce(t *testing.T, s *suite) {
	part := newPart()
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		var puts []shapes.Put
		for k := range 200 {
			puts = append(puts, s.row(part, fmt.Sprint(k), int64(i+1), fmt.Sprint(i)))
		}
		if i%2 == 1 {
			slices.Reverse(puts)
		}
		all.Go(func() { errs[i] = s.Put(t.Context(), puts...) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	rows, err := s.Scan(t.Context(), s.rows, part, shapes.Range{Limit: 1000})
	require.NoError(t, err)
	require.Len(t, rows, 200)
	for _, r := range rows {
		require.Equal(t, "7", string(r.Value))
	}
}

func testSwap(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	swap := func(was, version int64, value string, remove bool) (refused bool, there shapes.Row) {
		t.Helper()
		out, err := s.Swap(ctx, []shapes.Swap{{Put: s.row(part, "k", version, value), Was: was, Remove: remove}})
		require.NoError(t, err)
		if len(out) == 0 {
			return false, there
		}
		require.Zero(t, out[0].Index)
		return true, out[0].There
	}
	refused, there := swap(1, 2, "b", false)
	require.True(t, refused)
	require.Zero(t, there.Version)
	for range 2 { // and a repeat
		refused, _ = swap(0, 1, "a", false)
		require.False(t, refused)
	}
	refused, there = swap(0, 1, "other", false)
	require.True(t, refused)
	require.Equal(t, "a", string(there.Value))
	refused, _ = swap(1, 2, "b", false)
	require.False(t, refused)
	refused, there = swap(1, 2, "c", false)
	require.True(t, refused)
	require.EqualValues(t, 2, there.Version)
	require.NoError(t, s.Put(ctx, s.row(part, "kk", 5, "a longer key")))
	refused, _ = swap(1, 0, "", true)
	require.True(t, refused, "it has another version")
	refused, _ = swap(2, 0, "", true)
	require.False(t, refused)
	require.Zero(t, s.at(t, s.rows, part, "k").Version)
	require.EqualValues(t, 5, s.at(t, s.rows, part, "kk").Version)
	gone := s.row(part, "g", 1, "")
	gone.Gone = true
	out, err := s.Swap(ctx, []shapes.Swap{{Put: gone}})
	require.NoError(t, err)
	require.Empty(t, out)
	out, err = s.Swap(ctx, []shapes.Swap{{Put: s.row(part, "g", 1, "")}})
	require.NoError(t, err)
	require.Len(t, out, 1, "a row that is gone exists")
	require.True(t, out[0].There.Gone)
}

func testSwapRace(t *testing.T, s *suite) {
	for range 10 {
		part := newPart()
		won := race(t, 8, func(i int) (bool, error) {
			refused, err := s.Swap(t.Context(), []shapes.Swap{{Put: s.row(part, "k", 1, fmt.Sprint(i))}})
			if err == nil && len(refused) > 0 && refused[0].There.Version != 1 {
				err = fmt.Errorf("the winner is %v", refused[0].There)
			}
			return len(refused) == 0, err
		})
		require.Equal(t, fmt.Sprint(won), string(s.at(t, s.rows, part, "k").Value))
	}
}

// race runs f n times at once and returns the only call that won.
func race(t *testing.T, n int, f func(i int) (bool, error)) (winner int) {
	t.Helper()
	var all sync.WaitGroup
	won, errs, start := make([]bool, n), make([]error, n), make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			won[i], errs[i] = f(i)
		})
	}
	close(start)
	all.Wait()
	count := 0
	for i := range n {
		require.NoError(t, errs[i])
		if won[i] {
			winner = i
			count++
		}
	}
	require.Equal(t, 1, count, "winners")
	return winner
}

func testAlso(t *testing.T, s *suite) {
	ctx, part, other := t.Context(), newPart(), newPart()
	fenced := shapes.Put{Table: s.fenced, Row: shapes.Row{Part: part, Key: []byte("f"), Version: 1, Value: []byte("f")}}
	for range 2 {
		refused, err := s.Swap(ctx, []shapes.Swap{{Put: s.row(part, "k", 1, "v")}}, s.row(other, "a", 1, "also"), fenced)
		require.NoError(t, err)
		require.Empty(t, refused)
	}
	require.Equal(t, "also", string(s.at(t, s.rows, other, "a").Value))
	require.Equal(t, "f", string(s.at(t, s.fenced, part, "f").Value))
}

// testVeto makes a row and vetoes it, in both orders. After a veto the row is as if it had never been made.
func testVeto(t *testing.T, s *suite) {
	ctx, table := t.Context(), s.rows
	swap := func(part []byte, value string, veto bool) []shapes.Refusal {
		t.Helper()
		row := shapes.Row{Part: part, Version: 1, Value: []byte(value)}
		if veto {
			row.TTL = time.Hour
		}
		refused, err := s.Swap(ctx, []shapes.Swap{{Put: shapes.Put{Table: table, Row: row}, Veto: veto}})
		require.NoError(t, err)
		return refused
	}
	made, vetoed := newPart(), newPart()
	for range 2 {
		require.Empty(t, swap(made, "made", false))
		refused := swap(made, "veto", true)
		require.Len(t, refused, 1)
		require.Equal(t, "made", string(refused[0].There.Value))
		require.Empty(t, swap(vetoed, "veto", true))
		refused = swap(vetoed, "made", false)
		require.Len(t, refused, 1)
		require.Equal(t, "veto", string(refused[0].There.Value))
	}
	require.Equal(t, "made", string(s.at(t, table, made, "").Value))
	require.Equal(t, "veto", string(s.at(t, table, vetoed, "").Value))
	higher := shapes.Put{Table: table, Row: shapes.Row{Part: made, Version: 2, Value: []byte("changed")}}
	require.NoError(t, s.Put(ctx, higher))
	refused := swap(made, "made", false)
	require.Len(t, refused, 1)
	require.EqualValues(t, 2, refused[0].There.Version)
	found, err := s.Find(ctx, shapes.Address{Table: table, Part: vetoed}, shapes.Address{Table: table, Part: newPart()},
		shapes.Address{Table: table, Part: made})
	require.NoError(t, err)
	require.Equal(t, "veto", string(found[0][0].Value))
	require.Empty(t, found[1])
	require.Equal(t, "changed", string(found[2][0].Value))
	require.NoError(t, s.RemoveParts(ctx, table, 0, 0, made, vetoed))
	require.Zero(t, s.at(t, table, made, "").Version)
	require.Zero(t, s.at(t, table, vetoed, "").Version)
}

// testVetoRace makes rows and vetoes them at once, while others read. All agree on the result.
func testVetoRace(t *testing.T, s *suite) {
	table := s.rows
	for i := range 40 {
		part := newPart()
		values, seen := []string{"made", "made", "veto"}, make([]string, 4)
		won := make([]bool, len(values))
		var all sync.WaitGroup
		for k, value := range values {
			all.Go(func() {
				row := shapes.Row{Part: part, Version: 1, Value: []byte(value)}
				refused, err := s.Swap(t.Context(), []shapes.Swap{{Put: shapes.Put{Table: table, Row: row}, Veto: value == "veto"}})
				if err != nil {
					t.Error(err)
				}
				if won[k] = len(refused) == 0; !won[k] {
					seen[k] = string(refused[0].There.Value)
				}
			})
		}
		if i%2 == 0 {
			all.Go(func() { seen[3] = string(s.at(t, table, part, "").Value) })
		}
		all.Wait()
		result := string(s.at(t, table, part, "").Value)
		for k, value := range values {
			require.Equal(t, value == result, won[k], "%s of %s", value, result)
		}
		for _, was := range seen {
			require.Contains(t, []string{"", result}, was)
		}
	}
}

// testGroups appends over the end of a group, and removes the first.
func testGroups(t *testing.T, s *suite) {
	ctx, log, part := t.Context(), s.log, newPart()
	last := log.Group + 5
	for n := 1; n <= last; n++ {
		there, err := s.Append(ctx, log, part, entry(n, fmt.Sprint(n), "v"))
		require.NoError(t, err)
		require.Zero(t, there)
	}
	got, err := s.Read(ctx, log, part, 3, 10_000)
	require.NoError(t, err)
	require.Len(t, got, last-3)
	for _, before := range []int{3, log.Group + 2} {
		require.NoError(t, s.Trim(ctx, log, part, before))
		got, err = s.Read(ctx, log, part, 0, 10_000)
		require.NoError(t, err)
		require.LessOrEqual(t, got[0].Number, before)
		require.Len(t, got, last-got[0].Number+1, "no gap")
	}
	for _, n := range []int{1, 2, log.Group, last} {
		there, err := s.Append(ctx, log, part, entry(n, "other", "v"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, there.Number, n)
	}
	there, err := s.Append(ctx, log, part, entry(last+1, "t", "v"))
	require.NoError(t, err)
	require.Zero(t, there)
	require.NoError(t, s.RemoveParts(ctx, log, 0, 0, part))
	got, err = s.Read(ctx, log, part, 0, 10)
	require.NoError(t, err)
	require.Empty(t, got)
}

func testSwapMany(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	require.NoError(t, s.Put(ctx, s.row(part, "b", 3, "b"), s.row(part, "d", 1, "d")))
	refused, err := s.Swap(ctx, []shapes.Swap{
		{Put: s.row(part, "d", 2, "dd"), Was: 1}, {Put: s.row(part, "c", 1, "c")}, {Put: s.row(part, "b", 1, "no")},
		{Put: s.row(part, "a", 9, "no"), Was: 8},
	})
	require.NoError(t, err)
	require.Len(t, refused, 2)
	require.Equal(t, 2, refused[0].Index)
	require.EqualValues(t, 3, refused[0].There.Version)
	require.Equal(t, 3, refused[1].Index)
	require.Zero(t, refused[1].There.Version)
	require.Equal(t, "dd", string(s.at(t, s.rows, part, "d").Value))
	require.Equal(t, "c", string(s.at(t, s.rows, part, "c").Value))
	require.Equal(t, "b", string(s.at(t, s.rows, part, "b").Value))
	refused, err = s.Swap(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, refused)
}

func keysOf(rows []shapes.Row) (keys []string) {
	for _, r := range rows {
		keys = append(keys, string(r.Key))
	}
	return keys
}

func testFind(t *testing.T, s *suite) {
	ctx, part, other := t.Context(), newPart(), newPart()
	for _, key := range []string{"", "a", "a\x00", "a\xff", "a\xff\xff", "b", "\xff", "\xff\xff", "\x00"} {
		require.NoError(t, s.Put(ctx, s.row(part, key, 1, "v"), s.row(other, key, 1, "v")))
	}
	for prefix, want := range map[string][]string{
		"":         {"", "\x00", "a", "a\x00", "a\xff", "a\xff\xff", "b", "\xff", "\xff\xff"},
		"a":        {"a", "a\x00", "a\xff", "a\xff\xff"},
		"a\xff":    {"a\xff", "a\xff\xff"},
		"\xff":     {"\xff", "\xff\xff"},
		"\xff\xff": {"\xff\xff"},
		"c":        nil,
	} {
		found, err := s.Find(ctx, shapes.Address{Table: s.rows, Part: part, Key: []byte(prefix)})
		require.NoError(t, err)
		require.Equal(t, want, keysOf(found[0]), "%q", prefix)
		found, err = s.Find(ctx, shapes.Address{Table: s.rows, Part: other, Key: []byte("b")},
			shapes.Address{Table: s.rows, Part: part, Key: []byte(prefix)})
		require.NoError(t, err)
		require.Equal(t, []string{"b"}, keysOf(found[0]))
		require.Equal(t, want, keysOf(found[1]), "%q", prefix)
	}
}

func testScan(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	var keys []string
	for i := range 40 { // over many buckets
		id := models.MinID(at.Add(time.Duration(i) * 7 * time.Hour))
		keys = append(keys, string(id[:]))
		require.NoError(t, s.Put(ctx, shapes.Put{Table: s.indexed, Row: shapes.Row{Part: part, Key: id[:], Version: 1,
			Value: []byte("value " + fmt.Sprint(i))}}))
	}
	scan := func(r shapes.Range) []string {
		t.Helper()
		rows, err := s.Scan(ctx, s.indexed, part, r)
		require.NoError(t, err)
		return keysOf(rows)
	}
	back := slices.Clone(keys)
	slices.Reverse(back)
	key := func(i int) []byte { return []byte(keys[i]) }
	require.Equal(t, keys, scan(shapes.Range{Limit: 100}))
	require.Equal(t, back, scan(shapes.Range{Limit: 100, Back: true}))
	require.Equal(t, keys[:7], scan(shapes.Range{Limit: 7}))
	require.Equal(t, back[:7], scan(shapes.Range{Limit: 7, Back: true}))
	require.Equal(t, keys[5:9], scan(shapes.Range{From: key(5), To: key(9), Limit: 100}))
	require.Equal(t, back[31:35], scan(shapes.Range{From: key(5), To: key(9), Limit: 100, Back: true}))
	require.Equal(t, keys[6:8], scan(shapes.Range{From: append(key(5), 0), Limit: 2}))
	require.Equal(t, keys[38:], scan(shapes.Range{From: key(38), Limit: 9}))
	require.Empty(t, scan(shapes.Range{From: key(9), To: key(9), Limit: 9}))
	require.Empty(t, scan(shapes.Range{Limit: 0}))
	require.Empty(t, scan(shapes.Range{Limit: -1}))
	rows, err := s.Scan(ctx, s.indexed, part, shapes.Range{Limit: 1, Back: true, Head: 5})
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix([]byte("value 39"), rows[0].Value) && len(rows[0].Value) >= 5, "%q", rows[0].Value)
}

func testRemove(t *testing.T, s *suite) {
	ctx, part, other := t.Context(), newPart(), newPart()
	var want []string
	for i := range 2500 { // more than one statement removes
		key := fmt.Sprintf("%04d", i)
		want = append(want, key)
		require.NoError(t, s.Put(ctx, s.row(part, key, 1, "v")))
	}
	require.NoError(t, s.Put(ctx, s.row(other, "0000", 1, "v")))
	left := func() []string {
		rows, err := s.Scan(ctx, s.rows, part, shapes.Range{Limit: 5000})
		require.NoError(t, err)
		return keysOf(rows)
	}
	for range 2 {
		require.NoError(t, s.RemoveRows(ctx, shapes.Address{Table: s.rows, Part: part, Key: []byte("2499")},
			shapes.Address{Table: s.rows, Part: part, Key: []byte("9")}))
		require.Equal(t, want[:2499], left())
	}
	require.NoError(t, s.RemoveRange(ctx, s.rows, part, []byte("0100"), []byte("2400")))
	require.Equal(t, append(slices.Clone(want[:100]), want[2400:2499]...), left())
	require.NoError(t, s.RemoveRange(ctx, s.rows, part, nil, []byte("0050")))
	require.NoError(t, s.RemoveRange(ctx, s.rows, part, []byte("2400"), nil))
	require.Equal(t, want[50:100], left())
	require.NoError(t, s.RemoveParts(ctx, s.rows, 0, 0, part, newPart()))
	require.Empty(t, left())
	require.EqualValues(t, 1, s.at(t, s.rows, other, "0000").Version)
	require.NoError(t, s.Put(ctx, s.row(part, "0001", s.later(t), "again")))
	require.Equal(t, []string{"0001"}, left())
}

func testFence(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	put := func(key string, version int64) {
		t.Helper()
		require.NoError(t, s.Put(ctx, shapes.Put{Table: s.fenced,
			Row: shapes.Row{Part: part, Key: []byte(key), Version: version, Value: []byte("v")}}))
	}
	rows := func() []string {
		t.Helper()
		out, err := s.Scan(ctx, s.fenced, part, shapes.Range{Limit: 10})
		require.NoError(t, err)
		return keysOf(out)
	}
	put("a", 1)
	for range 2 {
		require.NoError(t, s.RemoveParts(ctx, s.fenced, 5, time.Hour, part))
		put("a", 1)
		put("b", 5)
		require.Empty(t, rows())
	}
	put("c", 6)
	require.Equal(t, []string{"c"}, rows(), "above the fence")
	if s.hides {
		require.NoError(t, s.RemoveParts(ctx, s.fenced, 0, 0, part))
		require.Empty(t, rows())
		put("c", s.later(t))
		require.Equal(t, []string{"c"}, rows())
		return
	}
	require.NoError(t, s.RemoveParts(ctx, s.fenced, 0, 0, part))
	put("a", 1)
	require.Equal(t, []string{"a"}, rows(), "the fence was removed")
	require.NoError(t, s.RemoveParts(ctx, s.fenced, 5, time.Second, part))
	require.Eventually(t, func() bool {
		put("a", 1)
		return len(rows()) == 1
	}, time.Minute, 50*time.Millisecond, "the fence ends")
}

// testFenceRace puts rows while their partition is removed. None may be left.
func testFenceRace(t *testing.T, s *suite) {
	for range 20 {
		part := newPart()
		var all sync.WaitGroup
		errs := make([]error, 9)
		for i := range 8 {
			all.Go(func() {
				errs[i] = s.Put(t.Context(), shapes.Put{Table: s.fenced,
					Row: shapes.Row{Part: part, Key: []byte(fmt.Sprint(i)), Version: 1, Value: []byte("v")}})
			})
		}
		all.Go(func() { errs[8] = s.RemoveParts(t.Context(), s.fenced, 1, time.Hour, part) })
		all.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		rows, err := s.Scan(t.Context(), s.fenced, part, shapes.Range{Limit: 10})
		require.NoError(t, err)
		require.Empty(t, rows)
	}
}

func entry(n int, token, value string) shapes.Entry {
	return shapes.Entry{Number: n, Token: []byte(token), Value: []byte(value)}
}

func testAppend(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	last, err := s.Last(ctx, s.log, part)
	require.NoError(t, err)
	require.Zero(t, last.Number)
	_, err = s.Append(ctx, s.log, part, entry(2, "t", "gap"))
	require.ErrorIs(t, err, models.ErrInvalid)
	for n := 1; n <= 5; n++ {
		for range 2 { // and a repeat
			there, err := s.Append(ctx, s.log, part, entry(n, fmt.Sprint("t", n), fmt.Sprint("v", n)))
			require.NoError(t, err)
			require.Zero(t, there)
		}
		there, err := s.Append(ctx, s.log, part, entry(n, "other", "other"))
		require.NoError(t, err)
		require.Equal(t, entry(n, fmt.Sprint("t", n), fmt.Sprint("v", n)), there)
	}
	_, err = s.Append(ctx, s.log, part, entry(7, "t", "gap"))
	require.ErrorIs(t, err, models.ErrInvalid)
	there, err := s.Append(ctx, s.log, part, entry(3, "other", "other"))
	require.NoError(t, err)
	require.Equal(t, 3, there.Number)
	got, err := s.Read(ctx, s.log, part, 1, 2)
	require.NoError(t, err)
	require.Equal(t, []shapes.Entry{entry(2, "t2", "v2"), entry(3, "t3", "v3")}, got)
	got, err = s.Read(ctx, s.log, part, 5, 2)
	require.NoError(t, err)
	require.Empty(t, got)
	got, err = s.Read(ctx, s.log, part, 0, 0)
	require.NoError(t, err)
	require.Empty(t, got)
	last, err = s.Last(ctx, s.log, part)
	require.NoError(t, err)
	require.Equal(t, entry(5, "t5", "v5"), last)
	require.NoError(t, s.RemoveParts(ctx, s.log, 0, 0, part))
	got, err = s.Read(ctx, s.log, part, 0, 10)
	require.NoError(t, err)
	require.Empty(t, got)
}

func testAppendRace(t *testing.T, s *suite) {
	part := newPart()
	for n := 1; n <= 20; n++ {
		won := race(t, 6, func(i int) (bool, error) {
			there, err := s.Append(t.Context(), s.log, part, entry(n, fmt.Sprint(i), "v"))
			if err == nil && there.Number != 0 && there.Number != n {
				err = fmt.Errorf("the winner has number %d", there.Number)
			}
			return there.Number == 0, err
		})
		last, err := s.Last(t.Context(), s.log, part)
		require.NoError(t, err)
		require.Equal(t, entry(n, fmt.Sprint(won), "v"), last)
	}
}

func testTrim(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	for n := 1; n <= 5; n++ {
		_, err := s.Append(ctx, s.log, part, entry(n, "t", "v"))
		require.NoError(t, err)
	}
	require.NoError(t, s.Trim(ctx, s.log, part, 100))
	last, err := s.Last(ctx, s.log, part)
	require.NoError(t, err)
	require.Equal(t, 5, last.Number, "the last one stays")
	there, err := s.Append(ctx, s.log, part, entry(1, "other", "v"))
	require.NoError(t, err)
	require.Positive(t, there.Number, "a number is never given again")
	there, err = s.Append(ctx, s.log, part, entry(6, "t", "v"))
	require.NoError(t, err)
	require.Zero(t, there.Number)
	require.NoError(t, s.Trim(ctx, s.log, newPart(), 100))
}

func testRewrite(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	_, err := s.Append(ctx, s.log, part, entry(1, "t", "old"))
	require.NoError(t, err)
	for _, c := range []struct {
		was, value string
		done       bool
	}{{"older", "x", false}, {"old", "new", true}, {"old", "newer", false}} {
		done, err := s.Rewrite(ctx, s.log, part, entry(1, "t", c.value), []byte(c.was))
		require.NoError(t, err)
		require.Equal(t, c.done, done, "%v", c)
	}
	last, err := s.Last(ctx, s.log, part)
	require.NoError(t, err)
	require.Equal(t, entry(1, "t", "new"), last)
}

func testReadWith(t *testing.T, s *suite) {
	ctx, part := t.Context(), newPart()
	es, rows, err := s.ReadWith(ctx, s.log, s.rows, part, shapes.Range{})
	require.NoError(t, err)
	require.Empty(t, es)
	require.Empty(t, rows)
	for n := 1; n <= 12; n++ {
		_, err := s.Append(ctx, s.log, part, entry(n, fmt.Sprint(n), "v"))
		require.NoError(t, err)
		require.NoError(t, s.Put(ctx, s.row(part, string(rune('a'+n)), int64(n), fmt.Sprint(n))))
	}
	gone := s.row(part, "gone", 1, "")
	gone.Gone = true
	require.NoError(t, s.Put(ctx, gone, s.row(newPart(), "other", 1, "")))
	es, rows, err = s.ReadWith(ctx, s.log, s.rows, part, shapes.Range{})
	require.NoError(t, err)
	require.Len(t, es, 12)
	for i := range es {
		require.Equal(t, entry(i+1, fmt.Sprint(i+1), "v"), es[i])
	}
	require.Len(t, rows, 12)
	require.Equal(t, shapes.Row{Part: part, Key: []byte("b"), Version: 1, Value: []byte("1")}, rows[0])
	_, rows, err = s.ReadWith(ctx, s.log, s.rows, part, shapes.Range{From: []byte("c"), To: []byte("e")})
	require.NoError(t, err)
	require.Equal(t, []string{"c", "d"}, keysOf(rows))
}

func testEndedContext(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Put(ctx, s.row(newPart(), "k", 1, "v")), models.ErrUnavailable)
	_, err := s.Find(ctx, shapes.Address{Table: s.rows, Part: newPart()})
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.NoError(t, s.Ping(t.Context()))
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), now, time.Hour)
}

// testContextEnds ends the contexts of calls while they run. The race detector finds results that are still written.
func testContextEnds(t *testing.T, s *suite) {
	part := newPart()
	last, err := s.Append(t.Context(), s.log, part, entry(1, "t", "v"))
	require.NoError(t, err)
	require.Zero(t, last)
	require.NoError(t, s.Put(t.Context(), s.row(part, "k", 1, "v")))
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		var calls errgroup.Group
		calls.Go(func() error {
			refused, err := s.Swap(ctx, []shapes.Swap{{Put: s.row(part, "k", int64(i+2), "w"), Was: 1}})
			if err != nil {
				require.Empty(t, refused)
			}
			return err
		})
		calls.Go(func() error {
			there, err := s.Append(ctx, s.log, part, entry(1, fmt.Sprint("t", i), "v"))
			if err != nil {
				require.Zero(t, there)
			}
			return err
		})
		calls.Go(func() error {
			_, err := s.Rewrite(ctx, s.log, part, entry(1, "t", "v"), []byte("v"))
			return err
		})
		if err := calls.Wait(); err != nil && !errors.Is(err, models.ErrOutcomeUnknown) {
			require.ErrorIs(t, err, models.ErrUnavailable)
		}
		cancel()
	}
}
