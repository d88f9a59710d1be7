package shards

import (
	"cmp"
	"container/heap"
	"hash/fnv"
	"slices"
)

// mostShards is the maximum number of shards. It is also a bit mask: split replaces these low bits
// of a score with the shard's index.
const mostShards = 1<<20 - 1

// algorithm is the version of the assignment below. Members with different versions compute
// different assignments.
const algorithm = 1

// assign returns the seat of each shard. seats lists the taken seats, in ascending order. The
// result depends only on the arguments, so all members compute the same assignment.
//
// First the function split divides the shards among the seats from 0 to the last taken one. Then
// the shards of empty seats are dealt to the taken seats, so that loads differ by at most one.
func assign(shards []string, seats []int) []int {
	hashes := hash(shards)
	own := split(hashes, seats[len(seats)-1]+1)
	load := make(map[int]int, len(seats))
	for _, seat := range seats {
		load[seat] = 0
	}
	var spare []int
	for shard, seat := range own {
		if _, taken := load[seat]; taken {
			load[seat]++
		} else {
			spare = append(spare, shard)
		}
	}
	for _, most := range []int{len(shards) / len(seats), len(shards)/len(seats) + 1} {
		spare = deal(own, hashes, spare, seats, load, most)
	}
	return own
}

// deal gives spare shards to those seats that have fewer shards than the given limit. It tries the
// pairs of a shard and a seat in descending order of their scores. It returns the shards that are
// left over.
func deal(own []int, hashes []uint64, spare, seats []int, load map[int]int, most int) (left []int) {
	free := slices.DeleteFunc(slices.Clone(seats), func(seat int) bool {
		return load[seat] >= most
	})
	var all offers
	for _, shard := range spare {
		if len(free) > 0 {
			all = append(all, best(hashes, shard, free))
		}
	}
	heap.Init(&all)
	for len(all) > 0 && len(free) > 0 {
		o := &all[0]
		if load[o.seat] >= most {
			*o = best(hashes, o.shard, free)
			heap.Fix(&all, 0)
			continue
		}
		own[o.shard] = o.seat
		if load[o.seat]++; load[o.seat] == most {
			free = slices.DeleteFunc(free, func(seat int) bool { return seat == o.seat })
		}
		heap.Pop(&all)
	}
	for _, shard := range spare {
		if _, taken := load[own[shard]]; !taken {
			left = append(left, shard)
		}
	}
	return left
}

// An offer pairs a shard with the seat for which it has the highest score.
type offer struct {
	score       uint64
	shard, seat int
}

func best(hashes []uint64, shard int, seats []int) offer {
	o := offer{shard: shard, seat: seats[0]}
	for _, seat := range seats {
		if sc := score(hashes[shard], seat); sc > o.score {
			o.score, o.seat = sc, seat
		}
	}
	return o
}

// offers is a heap with the highest score on top.
type offers []offer

func (o offers) Len() int      { return len(o) }
func (o offers) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o offers) Less(i, j int) bool {
	return cmp.Or(-cmp.Compare(o[i].score, o[j].score), o[i].shard-o[j].shard) < 0
}
func (o *offers) Push(any) { panic("a shard offers once") }
func (o *offers) Pop() any {
	*o = (*o)[:len(*o)-1]
	return nil
}

// split returns the seat of each shard if the seats 0 to k-1 are taken. Seat 0 begins with all
// shards. The other seats are added one at a time, and each takes its share from the seats with the
// most shards. So when the last seat is added or removed, no shard moves between the others.
func split(hashes []uint64, k int) []int {
	own := make([]int, len(hashes))
	of := make([][]int, k) // the shards of each seat
	of[0] = make([]int, len(hashes))
	for shard := range hashes {
		of[0][shard] = shard
	}
	keys := make([]uint64, 0, len(hashes))
	for seat := 1; seat < k; seat++ {
		for giver, n := range gives(of[:seat], len(hashes)/(seat+1)) {
			if n == 0 {
				continue
			}
			keys = keys[:0]
			for _, shard := range of[giver] { // sorting numbers is quick
				keys = append(keys, score(hashes[shard], seat)&^mostShards|uint64(shard))
			}
			slices.Sort(keys)
			rest := len(keys) - n
			for i, key := range keys {
				of[giver][i] = int(key & mostShards)
			}
			for _, shard := range of[giver][rest:] {
				own[shard] = seat
			}
			of[seat] = append(of[seat], of[giver][rest:]...)
			of[giver] = of[giver][:rest]
		}
	}
	return own
}

// gives returns how many shards each seat gives to a new seat. The new seat takes n shards in all,
// one at a time, each from the seat that has the most shards at that point.
func gives(of [][]int, n int) []int {
	given := make([]int, len(of))
	next := len(of)
	rank := func(seat int) uint64 { return score(uint64(seat), next+1<<32) }
	order := make([]int, len(of)) // the seats with the most shards first
	for seat := range of {
		order[seat] = seat
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(len(of[b])-len(of[a]), -cmp.Compare(rank(a), rank(b)))
	})
	for i := range n { // the seats can take turns, since their loads differ by at most one
		given[order[i%len(order)]]++
	}
	return given
}

// hash returns a hash of each name. The hashes mustn't change between versions, machines or runs.
func hash(names []string) []uint64 {
	all := make([]uint64, len(names))
	for i, name := range names {
		h := fnv.New64a()
		h.Write([]byte(name))
		all[i] = h.Sum64()
	}
	return all
}

// score mixes a hash and a seat with the finalizer of SplitMix64. So each seat orders the shards in
// its own way.
func score(hash uint64, seat int) uint64 {
	x := hash*0x9E3779B97F4A7C15 ^ (uint64(seat)+0x7F4A7C15)*0xBF58476D1CE4E5B9
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}
