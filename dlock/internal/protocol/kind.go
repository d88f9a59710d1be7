package protocol

import "github.com/seed951563bd/distsync/backend"

// A Kind is a kind of lock, or one side of a read-write lock. Its methods describe how it differs
// from other kinds. No other code distinguishes kinds.
type Kind backend.Kind

// A Family is a set of kinds of lock. Within a family, a name stands for only one lock, even if it
// is used with different kinds.
type Family uint8

// The families of kinds.
const (
	Locks      Family = iota // plain, fenced and fair
	ReadWrites               // the two sides of read-write locks
	Semaphores
	Families // the number of families
)

// Representative returns one of the family's kinds, for use where any of them will do.
func (f Family) Representative() backend.Kind {
	switch f {
	case ReadWrites:
		return backend.Write
	case Semaphores:
		return backend.Permits
	default:
		return backend.Exclusive
	}
}

// A rule holds the special properties of a kind.
type rule struct {
	family                                                  Family
	shared, many, passes, notes, numbered, asserted, placed bool
}

var rules = [...]rule{
	backend.Exclusive: {family: Locks, passes: true},
	backend.Fenced:    {family: Locks, numbered: true},
	backend.Read:      {family: ReadWrites, shared: true, asserted: true},
	backend.Write:     {family: ReadWrites, passes: true, notes: true},
	backend.Fair:      {family: Locks, placed: true},
	backend.Permits:   {family: Semaphores, many: true, passes: true},
}

// String returns the name of the kind.
func (k Kind) String() string { return backend.Kind(k).String() }

// Family returns the family of the kind.
func (k Kind) Family() Family { return rules[k].family }

// Shared reports whether any number of parties can hold the lock through shared claims. Re-entries
// of such holds are counted only in the client.
func (k Kind) Shared() bool { return rules[k].shared }

// Many reports whether any number of parties can hold the lock, each through its own claim. Such a
// claim isn't re-entered.
func (k Kind) Many() bool { return rules[k].many }

// Passes reports whether a claim can go from holder to holder without a request to the store.
func (k Kind) Passes() bool { return rules[k].passes }

// Notes reports whether waiters leave a note in the store, so that other calls let them go first.
func (k Kind) Notes() bool { return rules[k].notes }

// Numbered reports whether claims have fencing tokens.
func (k Kind) Numbered() bool { return rules[k].numbered }

// Asserted reports whether even fixed leases are renewed. That is necessary if other holders can
// shorten the lease in the store.
func (k Kind) Asserted() bool { return rules[k].asserted }

// Placed reports whether waiters stand in a line in the store. The store then gives the lock to the
// first waiter.
func (k Kind) Placed() bool { return rules[k].placed }
