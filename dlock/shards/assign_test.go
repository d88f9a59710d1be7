package shards

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// loads returns how many shards each of the seats has, the fewest and the most.
func loads(own, seats []int) (fewest, most int) {
	load := map[int]int{}
	for _, seat := range own {
		load[seat]++
	}
	fewest = len(own)
	for _, seat := range seats {
		fewest, most = min(fewest, load[seat]), max(most, load[seat])
	}
	return fewest, most
}

// moves returns how many shards change their seat.
func moves(before, after []int) (n int) {
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

func upTo(k int) []int {
	seats := make([]int, k)
	for i := range seats {
		seats[i] = i
	}
	return seats
}

func TestAssignIsEven(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n, k := r.IntN(300), 1+r.IntN(40)
		var seats []int
		for seat := range k {
			if r.IntN(3) > 0 || seat == k-1 {
				seats = append(seats, seat)
			}
		}
		own := assign(Numbered(n), seats)
		for shard, seat := range own {
			if !slices.Contains(seats, seat) {
				t.Fatalf("shard %d has seat %d, which nobody has: %v", shard, seat, seats)
			}
		}
		if fewest, most := loads(own, seats); most-fewest > 1 {
			t.Errorf("%d shards, seats %v: from %d to %d", n, seats, fewest, most)
		}
	}
}

// One more seat at the end takes its part, and one less gives it back; nothing else moves.
func TestAssignMovesLittle(t *testing.T) {
	names := Numbered(200)
	for k := 1; k < 40; k++ {
		before, after := assign(names, upTo(k)), assign(names, upTo(k+1))
		if got, want := moves(before, after), len(names)/(k+1); got != want {
			t.Errorf("from %d to %d seats %d shards move, want %d", k, k+1, got, want)
		}
	}
	all := assign(names, upTo(20))
	for empty := range 19 {
		seats := slices.Delete(upTo(20), empty, empty+1)
		if got := moves(all, assign(names, seats)); got != 10 {
			t.Errorf("without seat %d %d shards move, want 10", empty, got)
		}
	}
}

// All members compute the same, also those of another build.
func TestAssignIsStable(t *testing.T) {
	got := fmt.Sprint(assign([]string{"a", "b", "c", "d", "e", "f", "g"}, []int{0, 2, 3}))
	if want := "[3 3 0 2 2 0 3]"; got != want {
		t.Errorf("assign = %s, want %s: members of different versions would disagree, "+
			"so the version of the algorithm must change, too", got, want)
	}
}

func BenchmarkAssign(b *testing.B) {
	for _, size := range [][2]int{{200, 20}, {1000, 50}, {10000, 200}} {
		names, seats := Numbered(size[0]), upTo(size[1])
		b.Run(fmt.Sprint(size[0], "x", size[1]), func(b *testing.B) {
			for b.Loop() {
				assign(names, seats)
			}
		})
		half := slices.DeleteFunc(upTo(size[1]), func(seat int) bool { return seat%2 == 0 })
		b.Run(fmt.Sprint(size[0], "x", size[1], "half"), func(b *testing.B) {
			for b.Loop() {
				assign(names, half)
			}
		})
	}
}
