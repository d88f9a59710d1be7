package contract

import (
	"slices"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// Case is a case of the suite, as far as a [Harness] chooses by it.
type Case struct {
	Part string // "steps", "model", "locker", "locker without hand-over" or "histories"
	Name string // as in "acquire/held" or "a dead holder"; empty for "model"

	// As is the kind of lock that a case about plain locks is run again for, and else Exclusive.
	As backend.Kind

	Tags Tags
}

// String returns what go test calls the case, but for the name of the test that calls [Run].
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

// as is what the cases are run below that are run again for a kind.
func as(k backend.Kind) string { return "as " + k.String() }

// Tags say what cases have in common.
type Tags uint32

// What a [Harness] may choose by. There are others, by which the suite chooses itself.
const (
	// Essential cases are those in which most depends on the store: all that takes the steps of a
	// session one by one, with a few of the others. What is run again for another kind of lock, or
	// for clients that don't hand locks on, isn't among them.
	Essential Tags = 1 << iota

	// Exclusion is looked at: what they find wrong is that two had a lock at once. How slow the
	// machine was is no excuse for that.
	Exclusion

	// PartHangs: they need Store.Parts. HoldStays is the one of them in which a lock is held while
	// each of the parts hangs.
	PartHangs
	HoldStays

	// InLine cases are about the line of a Fair lock.
	InLine

	// Forced cases free locks by force at any moment, or lose all data, beside clients that use
	// them.
	Forced

	forReaders    // they hold of a reader that is the only one, too
	forPermits    // they hold of the only permit of a semaphore, too
	woken         // somebody has to be woken by the store
	notInLine     // they don't hold where all waiters stand in line, and nothing passes inside a client
	differs       // a store may do otherwise for each kind of lock
	readersDiffer // a store may do otherwise for readers
	seenInLine    // a line has a case of its own for it
	ofClient      // it is dlock alone that does it, whatever the store
)

// Has says whether a case has one of these tags.
func (t Tags) Has(one Tags) bool { return t&one != 0 }

// tagged returns those of the cases that have one of the tags.
func tagged(cases []testCase, tags Tags) []testCase {
	return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return !c.tags.Has(tags) })
}

// untagged returns the others.
func untagged(cases []testCase, tags Tags) []testCase {
	return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.tags.Has(tags) })
}

// tag returns the cases with more tags.
func tag(tags Tags, cases []testCase) []testCase {
	cases = slices.Clone(cases)
	for i := range cases {
		cases[i].tags |= tags
	}
	return cases
}

// chooses says whether the harness wants a case.
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
