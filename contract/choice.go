package contract

import (
	"slices"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// Case identifies a case of the suite, for [Harness].Choose.
type Case struct {
	Part string // "steps", "model", "locker", "locker without hand-over" or "histories"
	Name string // as in "acquire/held" or "a dead holder"; empty for "model"

	// As is the kind of lock for which a case about plain locks is repeated. It is Exclusive for
	// all other cases.
	As backend.Kind

	Tags Tags
}

// String returns the name of the case in go test, without the name of the test that calls [Run].
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

// as returns the name of the parent test of the cases that are repeated for a kind.
func as(k backend.Kind) string { return "as " + k.String() }

// Tags is a set of properties that cases have in common.
type Tags uint32

// Tags by which a [Harness] may choose cases. The unexported tags are for the suite itself.
const (
	// Essential cases are those that depend most on the store: all cases that call the steps of a
	// session directly, and a few of the others. Cases that are repeated for another kind of lock,
	// or for clients without hand-over, aren't essential.
	Essential Tags = 1 << iota

	// Exclusion cases check that two holders never hold the lock at the same time. They aren't run
	// again after a failure, so they must pass even on a slow machine.
	Exclusion

	// PartHangs cases need Store.Parts. HoldStays marks the case in which a lock stays held while
	// the parts hang one after another.
	PartHangs
	HoldStays

	// InLine cases are about the line of a Fair lock.
	InLine

	// Forced cases free locks by force, or lose all data, at arbitrary times while clients use the
	// locks.
	Forced

	forReaders // these cases also run for Read locks, with a single reader
	forPermits // these cases also run for a semaphore with a single permit
	woken      // in these cases the store has to wake a waiter
	// these cases fail for Fair locks: all waiters stand in line, and no client hands the lock over
	notInLine
	differs       // a store may behave differently for each kind of lock
	readersDiffer // a store may behave differently for readers
	seenInLine    // Fair locks have a separate case instead
	ofClient      // these cases depend on dlock alone, and are the same for every store
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

// tag returns copies of the cases with these tags added.
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
