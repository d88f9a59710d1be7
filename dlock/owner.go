package dlock

import (
	"context"
	"sync/atomic"

	"github.com/seed951563bd/distsync/internal/goroutine"
)

// Owner is an owner of locks. Calls on its behalf are never excluded by its own holds. Create one
// with [NewOwner] for each sequential job, such as handling one message. The zero Owner is invalid,
// and using it panics.
type Owner struct{ id uint64 }

var owners atomic.Uint64

// NewOwner returns an owner that is unique within this process.
func NewOwner() Owner { return Owner{owners.Add(1)} }

// WithOwner returns a context in which calls act for o, in any goroutine. They re-enter the locks
// that o holds, and each unlock undoes the latest lock call that has no unlock yet. If a context
// names several owners or Holds (such as the Hold of a [Locker.Do]), the innermost wins. A Hold
// applies only to its own lock. WithOwner panics if o is zero.
//
// Goroutines that share an owner don't exclude each other. So don't use WithOwner in middleware
// around whole requests, unless each request really is one owner.
func WithOwner(ctx context.Context, o Owner) context.Context {
	o.mustBeSomebody("WithOwner")
	return context.WithValue(ctx, identityKey{}, &identity{party: o, outer: identityOf(ctx)})
}

func (o Owner) mustBeSomebody(where string) {
	if o == (Owner{}) {
		panic("dlock: " + where + ": the zero Owner is nobody; use NewOwner")
	}
}

// An identity is an owner or a hold that a context carries. Calls with that context act for it.
type identity struct {
	party  party
	client *Client // the hold's client
	hold   *hold   // nil if the identity is an owner
	outer  *identity
}

type identityKey struct{}

// identityOf returns the innermost identity in a context, or nil.
func identityOf(ctx context.Context) *identity {
	id, _ := ctx.Value(identityKey{}).(*identity)
	return id
}

// A party is whatever can hold a lock: an Owner, a goroutineOwner, or the *variable of a Locker's
// plain calls.
type party any

type goroutineOwner uint64

// A caller is the party that makes a call, with some facts about the call.
type caller struct {
	party party
	hold  *hold // this lock's hold in ctx, or nil
	alone bool  // the party makes no other calls

	excluded func() // called when someone else holds the lock
}

// caller returns the caller for ctx. Its party is taken from the innermost identity in ctx that is
// an owner or a hold of this lock. If there is none, it is the party of plain calls.
func (l *Locker) caller(ctx context.Context) caller {
	mustBeContext(ctx)
	for id := identityOf(ctx); id != nil; id = id.outer {
		if id.hold == nil || id.client == l.client && id.hold.claim.object.is(l) {
			return caller{party: id.party, hold: id.hold}
		}
	}
	return caller{party: l.self()}
}

func mustBeContext(ctx context.Context) {
	if ctx == nil {
		panic("dlock: the context is nil")
	}
}

// self returns the party of plain calls.
func (l *Locker) self() party {
	switch {
	case l.owner != Owner{}:
		return l.owner
	case l.client.goroutineOwners:
		return goroutineOwner(goroutine.ID())
	default:
		return l.plain
	}
}
