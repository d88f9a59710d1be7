package dlock

import (
	"context"
	"sync/atomic"

	"github.com/seed951563bd/distsync/internal/goroutine"
)

// Owner is a party that locks: whatever is done in its name is never excluded by what it holds
// itself. Make one per sequential job, such as the handling of one message, with [NewOwner]. The
// zero Owner is nobody, and using it panics.
type Owner struct{ id uint64 }

var owners atomic.Uint64

// NewOwner returns an owner that differs from all others in this process.
func NewOwner() Owner { return Owner{owners.Add(1)} }

// WithOwner returns a context in which everything is done in the name of o, in whatever goroutine:
// calls that are given it re-enter what o holds, and unlocks pair with locks last in, first out.
// The context of a [Locker.Do] names that Do's hold instead. It panics if o is zero.
//
// Goroutines that share an owner don't exclude each other, so it doesn't belong in middleware that
// wraps whole requests unless each request really is one party.
func WithOwner(ctx context.Context, o Owner) context.Context {
	o.mustBeSomebody("WithOwner")
	return context.WithValue(ctx, identityKey{}, &identity{party: o})
}

func (o Owner) mustBeSomebody(where string) {
	if o == (Owner{}) {
		panic("dlock: " + where + ": the zero Owner is nobody; use NewOwner")
	}
}

// An identity is what a context says about who is calling. The innermost counts.
type identity struct {
	party  party
	client *Client // if not nil, it goes for this client and name only: that of a Do
	name   string
}

type identityKey struct{}

// A party is who can hold a lock: an Owner, a goroutineOwner, or the *Locker of plain calls.
type party any

type goroutineOwner uint64

// caller returns in whose name a call with ctx is made.
func (l *Locker) caller(ctx context.Context) party {
	if id, ok := ctx.Value(identityKey{}).(*identity); ok {
		if id.client == nil {
			return id.party
		}
		// A Do that is over, and has nothing left to unlock, counts as none.
		if id.client == l.client && id.name == l.name && l.client.latest(l.name, id.party) != nil {
			return id.party
		}
	}
	return l.self()
}

// self returns who makes the plain calls.
func (l *Locker) self() party {
	switch {
	case l.owner != Owner{}:
		return l.owner
	case l.client.goroutineOwners:
		return goroutineOwner(goroutine.ID())
	default:
		return l
	}
}
