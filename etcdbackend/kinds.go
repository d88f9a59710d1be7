package etcdbackend

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// supported is the set of kinds of lock that this package supports.
var supported = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Permits,
	backend.Fair)

// A kind describes what differs between locks of one kind and others: the keys of their holds, and
// the steps.
type kind struct {
	role role // of the key of a hold
	traits

	acquire func(
		*session, context.Context, *attempt, backend.AcquireRequest,
	) (backend.AcquireResult, error)

	// held returns the key that an owner releases, perhaps as a guess.
	held func(*session, context.Context, *attempt) (record, error)

	// leave gives up the place of an owner that hasn't the lock's key. It is nil if there are no
	// places. freed reports whether the owner held the lock by that place.
	leave func(
		_ *session, _ context.Context, _ *attempt, key record, keeps bool,
	) (now record, freed bool, err error)

	// trim gives back what an owner holds if that isn't the given number of permits. It is nil if
	// an owner's count is the number of its holds, which it gives back one by one.
	trim func(
		_ *session, _ context.Context, _ *attempt, key record, permits int,
	) (now record, err error)

	// missing renews a hold that has no key, or returns an error if other data is in the way.
	missing func(*session, context.Context, *attempt) (held bool, err error)

	force func(*session, context.Context, *attempt) (backend.ForceReleaseResult, error)

	look func(
		*session, context.Context, *attempt, backend.LookRequest,
	) (backend.LookResult, error)

	// watch adds to a subscription what it watches besides the lock's key. It is nil if that is
	// nothing.
	watch func(*session, *subscription, backend.SubscribeRequest)
}

// traits are what the requests of a step depend on.
type traits struct {
	fair   bool // waiters have places in line, so all keys besides the lock's key matter
	token  bool // acquiring the lock returns a token
	keeps  bool // the lock can stay taken after its last release
	onlyUp bool // a step must not make a hold end sooner
	polite bool // sessions that wait try one after the other: see waiters
}

// kinds lists all kinds of this package.
var kinds = [...]kind{
	backend.Exclusive: exclusive,
	backend.Fenced:    with(exclusive, traits{token: true, keeps: true, polite: true}),
	backend.Read: {
		role:    readRole,
		traits:  traits{onlyUp: true},
		acquire: (*session).acquireRead,
		held:    (*session).heldRead,
		missing: (*session).renewMissing,
		force:   (*session).forceReads,
		look:    (*session).lookAtReads,
		watch:   (*session).watchShared,
	},
	backend.Write: {
		role:    writeRole,
		traits:  traits{keeps: true, onlyUp: true, polite: true},
		acquire: (*session).acquireWrite,
		held:    (*session).endNote,
		missing: (*session).renewMissing,
		force:   (*session).forceWrite,
		look:    (*session).lookAtWrite,
		watch:   (*session).watchShared,
	},
	backend.Fair: {
		traits:  traits{fair: true, keeps: true},
		acquire: (*session).acquire,
		held:    (*session).guessed,
		leave:   (*session).leaveLine,
		missing: (*session).takeLock,
		force:   (*session).forceHolder,
		look:    (*session).lookAtHolder,
		watch:   (*session).watchLine,
	},
	backend.Permits: {
		role:    permitRole,
		traits:  traits{keeps: true, polite: true},
		acquire: (*session).acquirePermits,
		held:    (*session).find,
		trim:    (*session).whole,
		missing: (*session).renewMissing,
		force:   (*session).forcePermits,
		look:    (*session).lookAtPermits,
		watch:   (*session).watchPermits,
	},
}

var exclusive = kind{
	traits:  traits{keeps: true, polite: true},
	acquire: (*session).acquire,
	held:    (*session).find,
	missing: (*session).renewMissing,
	force:   (*session).forceHolder,
	look:    (*session).lookAtHolder,
}

// kindOf returns the entry for a kind of lock, or nil if there is none.
func kindOf(k backend.Kind) *kind {
	if int(k) < len(kinds) {
		return &kinds[k]
	}
	return nil
}

// attempt returns an attempt at a step of a hold whose lease has ttl seconds.
func (k *kind) attempt(name, owner string, ttl int64) *attempt {
	return &attempt{id: holdID{name, owner, k.role}, ttl: ttl, traits: k.traits}
}

func with(k kind, t traits) kind {
	k.traits = t
	return k
}
