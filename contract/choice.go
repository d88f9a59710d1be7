package contract

import (
	"slices"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// A Case identifies one test case of the suite, for use by [Harness].Choose.
type Case struct {
	Part string // "steps", "model", "locker", "locker without hand-over" or "histories"
	Name string // for example "acquire/held" or "a dead holder"; empty for "model"

	// The suite repeats cases about plain locks for other kinds of lock. In such a repetition, As
	// is the other kind. Otherwise it is Exclusive.
	As backend.Kind

	Tags Tags
}

// String returns the subtest name of the case, relative to the test that calls [Run].
func (c Case) String() string {
	path := []string{c.Part}
	if c.As != backend.Exclusive {
		path = append(path, as(c.As))
	}
	if c.Name != "" {
		path = append(path, c.Name)
	}
	return strings.Join(path, "/")
}

// as returns the name of the subtest that groups the cases repeated for kind k.
func as(k backend.Kind) string { return "as " + k.String() }

// Tags is a bit set of the properties of a case.
type Tags uint32

// Tags by which a [Harness] can select cases. The unexported tags are for the suite itself.
const (
	// Essential cases are those that depend most on the store: every case that calls the methods of
	// a session directly, and a few others. Cases that are repeated for another kind of lock, or
	// for clients without hand-over, aren't essential.
	Essential Tags = 1 << iota

	// Exclusion cases check that two holders never hold the lock at the same time. They aren't
	// retried after a failure, so they must pass even on a slow machine.
	Exclusion

	// PartHangs cases make one part of the store hang, so they need Store.Parts. HoldStays marks
	// the case that checks that a held lock stays held while the parts hang one after another.
	PartHangs
	HoldStays

	// InLine cases test the queue of owners that wait in line for a Fair lock.
	InLine

	// Forced cases force-release locks, or wipe the store, at arbitrary times while clients use the
	// locks.
	Forced

	forReaders // cases that also run for Read locks, with a single reader
	forPermits // cases that also run for a semaphore with a single permit
	woken      // cases in which the store has to wake a waiter
	// cases that don't apply to Fair locks, because the store, not the client, decides who gets a
	// Fair lock next
	notInLine
	differs       // cases in which a store can treat each kind of lock differently
	readersDiffer // cases in which a store can treat readers differently
	seenInLine    // cases that don't run for Fair locks, which have a separate case
	ofClient      // cases that test dlock alone, with the same result on every store
)

// Has reports whether t contains at least one of the given tags.
func (t Tags) Has(one Tags) bool { return t&one != 0 }

// tagged returns the cases that have at least one of the tags.
func tagged(cases []testCase, tags Tags) []testCase {
	return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool {
		return !c.tags.Has(tags)
	})
}

// untagged returns the cases that have none of the tags.
func untagged(cases []testCase, tags Tags) []testCase {
	return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.tags.Has(tags) })
}

// tag returns copies of the cases with the given tags added.
func tag(tags Tags, cases []testCase) []testCase {
	cases = slices.Clone(cases)
	for i := range cases {
		cases[i].tags |= tags
	}
	return cases
}

// chooses reports whether the harness selects a case.
func (h Harness) chooses(c testCase) bool {
	if h.Choose == nil {
		return true
	}
	tags := c.tags & (Essential | Exclusion | PartHangs | HoldStays | InLine | Forced)
	if h.kind == backend.Fair {
		tags |= InLine
	}
	if h.again {
		tags &^= Essential
	}
	return h.Choose(Case{Part: h.part, Name: c.name, As: h.kind, Tags: tags})
}
