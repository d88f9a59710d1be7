package main

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"
)

// A Model is a transition system. S contains no pointers, since states are compared and hashed as
// values.
type Model[S comparable] interface {
	Init() S
	// Next calls emit for each successor of s, with a description of the event. If calm is true, it
	// emits only the events of a calm run, in which the network has no faults, no new calls begin,
	// and everything that is due is done.
	Next(s S, calm bool, emit func(S, string, ...any))
	// Bad returns the names of the properties that s violates.
	Bad(s S) []string
	// Done reports whether s is an acceptable end of a calm run.
	Done(s S) bool
}

// A Result says what an exploration visited and found.
type Result struct {
	States, Depth int
	// CutOff is true if the exploration stopped at its limit, before it visited all states.
	CutOff bool
	Found  []Violation // the first violation of each property, with a shortest trace
	Took   time.Duration
}

// A Violation is a violated property, with a trace that leads to the violation.
type Violation struct {
	Property string
	Trace    []string
}

// found returns the violation of a property, if there is one.
func (r *Result) found(property string) (Violation, bool) {
	i := slices.IndexFunc(r.Found, func(v Violation) bool { return v.Property == property })
	if i < 0 {
		return Violation{}, false
	}
	return r.Found[i], true
}

// has reports whether all the given properties were violated. It returns false for an empty list.
func (r *Result) has(properties []string) bool {
	for _, p := range properties {
		if _, ok := r.found(p); !ok {
			return false
		}
	}
	return len(properties) > 0
}

// explore visits all states breadth first. Then it checks that calm steps lead from each state to a
// Done state (property L1). It stops early once all properties in want are violated, or if there
// are more than limit states.
func explore[S comparable](m Model[S], want []string, limit int) Result {
	begin := time.Now()
	var r Result
	all := newSpace[S]()
	report := func(property string, at int32) {
		if _, ok := r.found(property); !ok {
			r.Found = append(r.Found, Violation{property, trace(m, all, at)})
		}
	}
	all.add(m.Init(), -1)
	levelEnd := int32(1)
	for i := int32(0); i < all.len(); i++ {
		if i == levelEnd {
			r.Depth++
			levelEnd = all.len()
		}
		s := all.at(i)
		for _, p := range m.Bad(s) {
			report(p, i)
		}
		if r.has(want) {
			break
		}
		if int(all.len()) > limit {
			r.CutOff = true
			break
		}
		m.Next(s, false, func(t S, _ string, _ ...any) { all.add(t, i) })
	}
	if !r.CutOff && !r.has(want) {
		if at, ok := stuck(m, all); ok {
			report("L1", at)
		}
	}
	r.States = int(all.len())
	r.Took = time.Since(begin)
	return r
}

// stuck returns the first state from which no Done state can be reached by calm steps. It returns
// false if there is none.
func stuck[S comparable](m Model[S], all *space[S]) (int32, bool) {
	n := all.len()
	var to []int32              // the target of each calm step, ordered by source
	ends := make([]int32, n)    // for each state: the index in "to" just past its last step
	start := make([]int32, n+1) // for each state: the index in "from" of the first step into it
	good := make([]bool, n)
	var queue []int32
	for i := range n {
		s := all.at(i)
		if m.Done(s) {
			good[i] = true
			queue = append(queue, i)
		} else {
			m.Next(s, true, func(t S, _ string, _ ...any) {
				j, ok := all.find(t)
				if !ok {
					panic(fmt.Sprintf("a calm step is not a step: %+v", t))
				}
				to = append(to, j)
				start[j+1]++
			})
		}
		ends[i] = int32(len(to))
	}
	for i := range n {
		start[i+1] += start[i]
	}
	from := make([]int32, len(to))
	fill := slices.Clone(start)
	k := int32(0)
	for i := range n {
		for ; k < ends[i]; k++ {
			from[fill[to[k]]] = i
			fill[to[k]]++
		}
	}
	for len(queue) > 0 {
		j := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, i := range from[start[j]:start[j+1]] {
			if !good[i] {
				good[i] = true
				queue = append(queue, i)
			}
		}
	}
	i := slices.Index(good, false)
	return int32(i), i >= 0
}

// trace describes a path to a state, one line per step. It runs the model again, because the
// descriptions aren't stored.
func trace[S comparable](m Model[S], all *space[S], at int32) []string {
	var lines []string
	for ; all.parent[at] >= 0; at = all.parent[at] {
		line := ""
		m.Next(all.at(all.parent[at]), false, func(t S, format string, args ...any) {
			if line == "" && t == all.at(at) {
				line = fmt.Sprintf(format, args...)
			}
		})
		lines = append(lines, line)
	}
	slices.Reverse(lines)
	return lines
}

// A space is a set of states, numbered in the order in which they were added. A map would need
// twice the memory.
type space[S comparable] struct {
	seed   maphash.Seed
	chunks [][]S
	parent []int32 // for each state: the state from which it was first reached
	table  []int32 // an open-addressing hash table; an entry is 0, or 1 + the number of a state
}

const chunk = 1 << 14

func newSpace[S comparable]() *space[S] {
	return &space[S]{seed: maphash.MakeSeed(), table: make([]int32, 1<<12)}
}

func (a *space[S]) len() int32 { return int32(len(a.parent)) }

func (a *space[S]) at(i int32) S { return a.chunks[i/chunk][i%chunk] }

// slot returns the index of the table entry for s, or of the empty entry that s would get.
func (a *space[S]) slot(s S) uint64 {
	mask := uint64(len(a.table) - 1)
	i := maphash.Comparable(a.seed, s) & mask
	for a.table[i] != 0 && a.at(a.table[i]-1) != s {
		i = (i + 1) & mask
	}
	return i
}

func (a *space[S]) find(s S) (int32, bool) {
	n := a.table[a.slot(s)]
	return n - 1, n != 0
}

// add adds s, unless s was added before. The parameter from is the number of the state from which s
// was reached, or -1.
func (a *space[S]) add(s S, from int32) {
	i := a.slot(s)
	if a.table[i] != 0 {
		return
	}
	n := a.len()
	if n%chunk == 0 {
		a.chunks = append(a.chunks, make([]S, 0, chunk))
	}
	last := &a.chunks[n/chunk]
	*last = append(*last, s)
	a.parent = append(a.parent, from)
	a.table[i] = n + 1
	if 3*len(a.parent) > 2*len(a.table) {
		a.grow()
	}
}

func (a *space[S]) grow() {
	a.table = make([]int32, 2*len(a.table))
	for i := range a.len() {
		a.table[a.slot(a.at(i))] = i + 1
	}
}
