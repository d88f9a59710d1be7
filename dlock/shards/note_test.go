package shards

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func TestNote(t *testing.T) {
	seats := make([]int, mostWeight)
	for i := range seats {
		seats[i] = mostSeat - mostWeight + i
	}
	for _, n := range []note{
		{run: "A", state: waits, weight: 1, list: list{numbered: 64, digest: "1"}, place: 3},
		{run: "A", version: 7, state: seated, seats: []int{0, 12}, weight: 2,
			list: newList([]string{"a"})},
		{ // as long as one can be
			run: "ABCDEFGHIJKLMNOP", version: 1 << 40, state: leaving, seats: seats,
			weight: mostWeight,
			place:  1 << 20, list: newList([]string{"a"}), most: 1 << 30,
			address: strings.Repeat("a", mostAddress),
		},
		{run: "A", state: young, weight: 1, address: "[::1]:80/?a=b&c ü"},
	} {
		text := n.encode()
		got, ok := parse(text)
		if !ok || !reflect.DeepEqual(got, n) {
			t.Errorf("%q is read as %+v, %t, want %+v", text, got, ok, n)
		}
		c := dlock.New(membackend.New())
		h, err := c.RWLocker("x").Reader().Acquire(t.Context(), dlock.HolderNote(text))
		if err != nil {
			t.Fatalf("a note of %d bytes: %v", len(text), err)
		}
		h.Release(t.Context())
		c.Close()
	}
}

func FuzzNote(f *testing.F) {
	f.Add(note{run: "A", state: waits, seats: []int{1, 2}}.encode())
	f.Add("r=A&s=m&q=1.x")
	f.Add("r=A&s=m&q=99999999999999999999&v=-1")
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := parse(text)
		if !ok {
			return
		}
		if again, ok := parse(n.encode()); !ok || !reflect.DeepEqual(again, n) {
			t.Errorf("%q is read as %+v, and then as %+v, %t", text, n, again, ok)
		}
		newView([]dlock.Holder{{Note: text}})
	})
}

// holders returns what a store says of members with these notes.
func holders(notes ...note) (all []dlock.Holder) {
	for _, n := range notes {
		all = append(all, dlock.Holder{Client: "c-" + n.run, Note: n.encode(),
			Remaining: time.Second})
	}
	return all
}

func TestView(t *testing.T) {
	v := newView(append(holders(
		note{run: "B", version: 1, state: seated, seats: []int{0}},
		note{run: "B", version: 2, state: seated, seats: []int{1}}, // B's latest note
		note{run: "A", state: young, seats: []int{1, 2}},
		note{run: "C", state: seated, seats: []int{2}},
		note{run: "D", state: young, seats: []int{3}},
		note{run: "E", state: young, seats: []int{3}},
		note{run: "F", state: leaving, seats: []int{4}},
	), dlock.Holder{Client: "x"}, dlock.Holder{Client: "y", Note: "hello"}))
	got := map[int]string{}
	for seat, m := range v.taken {
		got[seat] = m.run
	}
	// the older state counts, and then the smaller id
	want := map[int]string{1: "B", 2: "C", 3: "D"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("taken = %v, want %v", got, want)
	}
	if len(v.members) != 6 || v.find("F") == nil || v.find("X") != nil || v.next != time.Second {
		t.Errorf("the view is %+v", v)
	}
	if !slices.Equal(v.seats(), []int{1, 2, 3}) {
		t.Errorf("seats = %v", v.seats())
	}
}
