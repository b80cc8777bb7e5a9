package index

import (
	"fmt"
	"testing"
)

// owner is an Owner with lists by number.
type owner struct{ ids, accounts []string }

func (o *owner) IDIs(number uint32, id []byte) bool { return o.ids[number] == string(id) }
func (o *owner) AccountOf(number uint32) string     { return o.accounts[number] }

func TestIndexWithCollidingTags(t *testing.T) {
	t.Parallel()
	o := &owner{}
	x := New(o)
	const n = 20_000
	for round := range 3 {
		for i := range n {
			id := fmt.Sprint(i)
			account := []string{"a", "b"}[(round+i)%2]
			o.ids, o.accounts = append(o.ids, id), append(o.accounts, account)
			if round == 2 && i%10 != 0 {
				continue
			}
			here, all := x.Add([]byte(id), uint32(round*n+i), account)
			if all != round || here != round/2 {
				t.Fatalf("%s in round %d: %d %d", id, round, here, all)
			}
		}
	}
	counts := map[string]int{}
	for i := range n {
		numbers := x.Numbers(fmt.Append(nil, i))
		want := 2
		if i%10 == 0 {
			want = 3
		}
		first := x.Counts(fmt.Append(nil, i), uint32(i), counts)
		if len(numbers) != want || numbers[0] != uint32(i) || numbers[1] != uint32(n+i) || !first ||
			counts["a"]+counts["b"] != want {
			t.Fatalf("%d: %v %v %v", i, numbers, first, counts)
		}
		if x.Counts(fmt.Append(nil, i), uint32(n+i), counts) {
			t.Fatalf("%d: the second copy counts as the first", i)
		}
	}
	if x.Numbers([]byte("none")) != nil || x.Counts([]byte("none"), 0, counts) {
		t.Error("found an id that was not added")
	}
}
