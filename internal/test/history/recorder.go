package history

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A kind is what a call does.
type kind uint8

const (
	acquire kind = iota // any acquiring call, including re-entries
	unlock
	check // whether the hold is still valid by its holder's clock
	isHeld
	holdCount
	isLocked
	forceUnlock
	available
	wipe // not a call: the store loses everything
)

// A result is the answer to a call.
type result uint8

const (
	yes      result = iota // acquired, unlocked, valid, held, locked, freed by force
	no                     // held by another, ended, not held, not locked, was not locked
	lost                   // ErrLost
	notHeld                // ErrNotHeld
	upgrade                // ErrUpgrade
	conflict               // ErrConflict
	untold                 // ErrNoLimit
	tooMany                // ErrTooMany
	failed                 // any other error: the outcome is unknown
)

// A reentry records whether an acquisition was a re-entry.
type reentry uint8

const (
	fresh   reentry = iota
	perhaps         // it had no request of its own
	again
)

// forever stands for an end that never comes.
const forever = time.Duration(1<<63 - 1)

// An op is one call.
type op struct {
	id     int
	kind   kind
	side   backend.Kind // kind of lock
	name   string
	user   int
	client int
	call   time.Duration
	ret    time.Duration
	result result
	count  int // the answer of holdCount or available
	text   string
	err    error

	lease time.Duration // of an acquisition
	fixed bool          // the lease isn't renewed
	held  int           // the user's number of holds of that side when it called, by its own count
	reads int           // the user's number of Reads
	asked bool          // the token of the hold is known; a token of 0: it has none
	token uint64
	given bool // other code acquired it, at a time that its steps show
	gated bool // it may have waited for other users of the same Locker
	waits bool // it waits for the lock

	rounds bool   // it may have acquired the lock and given it back before its result
	holder string // the owner string of the hold that it got in the end

	// Fields for semaphores.
	permits     int
	limit       int // the limit of the call; 0: the last limit that the store was given
	loan        int // index of the hold among the user's
	least, most int // bounds of the limit
	// the largest number of permits that the store may have counted as taken at any time during the
	// call
	out     int
	crowded bool // other calls of the client asked for permits at that time

	// What the steps in the store reveal about the call.
	granter  *step
	number   *number // the number of the hold, if it is known
	reentry  reentry
	doomed   bool          // the hold was handed over, and perhaps ended by force before that
	granted  time.Duration // the earliest time at which the store may have granted it
	end      time.Duration // until then the hold can't end by itself
	prolongs time.Duration // a re-entry prolongs end until then
	until    time.Duration // the latest time at which it ends in the store
	ghost    bool          // a request without an answer may have held the lock during the call
	shaken   bool          // not all requests of the hold were answered
	// an unlock whose yes may be wrong, since it sent no release, or a release was lost on its way
	murky   bool
	joined  bool // a Read that shares a hold of its client, or permits that were handed over
	lent    bool // the shared hold may be a Write
	lined   bool // it stood in line, and the store granted it the lock
	onWrite bool // force on the reading side that asked the store to free a lent Write
	barred  bool // a writer's note may have kept it, or an earlier call, from reading
	forgets bool // after this loss of data, tokens may restart
}

// A Recorder records calls and steps. Its methods may be called concurrently.
type Recorder struct {
	clock func() time.Duration
	tell  *json.Encoder // nil: nothing is written

	mu    sync.Mutex
	last  time.Duration
	ops   []*op
	steps []*step
}

// New returns a Recorder whose clock starts now.
func New() *Recorder {
	begin := time.Now()
	return &Recorder{clock: func() time.Duration { return time.Since(begin) }}
}

// now returns the time. It never returns the same time twice, so the order of two events is known
// even in a bubble of virtual time. The caller must hold r.mu.
func (r *Recorder) now() time.Duration {
	r.last = max(r.last+1, r.clock())
	return r.last
}

func (r *Recorder) started(o *op) *op {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.id = len(r.ops)
	r.ops = append(r.ops, o)
	o.call = r.now()
	return o
}

func (r *Recorder) ended(o *op, res result, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.ret, o.result, o.err = r.now(), res, err
	r.tellOp(o)
}

// Wipe calls f, which makes the store lose all locks, and records that.
func (r *Recorder) Wipe(what string, f func()) {
	o := r.started(&op{kind: wipe, text: what, user: maxUsers})
	f()
	r.ended(o, yes, nil)
}

// Count returns how many calls were recorded.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ops)
}

type opKey struct{}

// tagged returns a context that marks the steps of a call. A call for several locks has an op for
// each lock.
func tagged(ctx context.Context, ops ...*op) context.Context {
	return context.WithValue(ctx, opKey{}, ops)
}

// tag returns the call that a step about a lock is made for, or nil.
func tag(ctx context.Context, name string) *op {
	ops, _ := ctx.Value(opKey{}).([]*op)
	for _, o := range ops {
		if len(ops) == 1 || o.name == name {
			return o
		}
	}
	return nil
}
