package etcdbackend

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// supported is the set of kinds of lock that this package supports.
var supported = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Permits,
	backend.Fair)

// A kind describes what distinguishes one kind of lock from the others.
type kind struct {
	role role // of the key of a hold
	traits
	acquire step[backend.AcquireRequest, backend.AcquireResult]
	force   step[backend.ForceReleaseRequest, backend.ForceReleaseResult]
	look    step[backend.LookRequest, backend.LookResult]

	// held returns the record of the hold that an owner is about to release. The record may be out
	// of date.
	held func(*session, context.Context, *attempt) (record, error)

	// watch adds the keys that a subscription watches besides the lock's key. The field is nil if
	// there are none.
	watch func(*session, *subscription, backend.SubscribeRequest)
}

// A step carries out a request. Its caller makes the attempt for the request with [kind.attempt].
type step[Req, Res any] func(*session, context.Context, *attempt, Req) (Res, error)

// traits holds the other differences between kinds.
type traits struct {
	token    bool // acquiring the lock returns a token
	fair     bool // waiters have places in line, so the lock's other keys matter, too
	permits  bool // a hold's count is a number of permits, which are released together
	keepable bool // the lock can stay taken after its last release
	onlyUp   bool // a step must not make a hold end sooner
	polite   bool // waiting sessions try one after the other: see waiters
}

// kinds lists all kinds of this package.
var kinds = [...]kind{
	backend.Exclusive: exclusive(traits{keepable: true, polite: true}),
	backend.Fenced:    exclusive(traits{token: true, keepable: true, polite: true}),
	backend.Fair: {
		traits:  traits{fair: true, keepable: true},
		acquire: (*session).acquire,
		force:   (*session).forceHolder,
		look:    (*session).lookAtHolder,
		held:    (*session).guessed,
		watch:   (*session).watchLine,
	},
	backend.Read: {
		role:    readRole,
		traits:  traits{onlyUp: true},
		acquire: (*session).acquireRead,
		force:   (*session).forceReads,
		look:    (*session).lookAtReads,
		held:    (*session).heldRead,
		watch:   (*session).watchShared,
	},
	backend.Write: {
		role:    writeRole,
		traits:  traits{keepable: true, onlyUp: true, polite: true},
		acquire: (*session).acquireWrite,
		force:   (*session).forceWrite,
		look:    (*session).lookAtHolder,
		held:    (*session).endNote,
		watch:   (*session).watchShared,
	},
	backend.Permits: {
		role:    permitRole,
		traits:  traits{permits: true, keepable: true, polite: true},
		acquire: (*session).acquirePermits,
		force:   (*session).forcePermits,
		look:    (*session).lookAtPermits,
		held:    (*session).find,
		watch:   (*session).watchPermits,
	},
}

func exclusive(t traits) kind {
	return kind{
		traits:  t,
		acquire: (*session).acquire,
		force:   (*session).forceHolder,
		look:    (*session).lookAtHolder,
		held:    (*session).find,
	}
}

// kindOf returns the entry for a kind of lock, or nil if there is none.
func kindOf(k backend.Kind) *kind {
	if int(k) < len(kinds) {
		return &kinds[k]
	}
	return nil
}

// attempt returns a new attempt at a step, for a hold with a lease of ttl seconds.
func (k *kind) attempt(name, owner string, ttl int64) *attempt {
	return &attempt{id: holdID{name, owner, k.role}, ttl: ttl, traits: k.traits}
}
