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
	check // asks whether the hold is valid according to its holder's clock
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
	yes      result = iota // acquired, unlocked, valid, held, locked or freed by force
	no                     // held by another, ended, not held or not locked
	lost                   // ErrLost
	notHeld                // ErrNotHeld
	upgrade                // ErrUpgrade
	conflict               // ErrConflict
	untold                 // ErrNoLimit
	tooMany                // ErrTooMany
	failed                 // any other error: the outcome is unknown
)

// A reentry says whether an acquisition was a re-entry.
type reentry uint8

const (
	fresh   reentry = iota
	perhaps         // the call sent no request
	again
)

// forever is the time of an event that never happens.
const forever = time.Duration(1<<63 - 1)

// An op records one call.
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

	lease time.Duration // lease of an acquisition
	fixed bool          // the lease isn't renewed
	held  int           // how many holds the user had on this side of the lock before the call
	reads int           // the user's number of Reads
	asked bool          // whether token is known; a known token of 0 means no token
	token uint64
	given bool // other code acquired the hold; the steps in the store show when
	gated bool // the call may have waited for other users of its Locker
	waits bool // the call waits for the lock

	rounds bool   // the call may have acquired a hold and released it before it returned
	holder string // owner string of the hold that the call returned

	// Fields for semaphores.
	permits     int
	limit       int // limit passed by the call; 0 means the store's last limit
	loan        int // index of the hold among the user's
	least, most int // bounds of the limit
	// out is the largest number of permits that the store may have counted as taken during the
	// call.
	out     int
	crowded bool // other calls of the client asked for permits meanwhile

	// Fields derived from the steps in the store.
	granter  *step
	number   *number // number of the hold, if known
	reentry  reentry
	doomed   bool          // the hold was handed over, but may have been ended by force before
	granted  time.Duration // earliest time at which the store may have granted the hold
	end      time.Duration // earliest time at which the hold may expire
	prolongs time.Duration // a re-entry extends end to this time
	until    time.Duration // latest time at which the hold ends in the store
	ghost    bool          // a hold that no user is aware of may have existed during the call
	shaken   bool          // requests about the hold may have gone unanswered
	// murky is set if an unlock may have wrongly reported success, because it sent no release, or
	// because a release may have been lost.
	murky   bool
	joined  bool // a Read that shares its client's hold, or permits that were handed over
	lent    bool // the shared hold may be a Write
	lined   bool // the store granted the lock while the call was in line
	onWrite bool // a ForceUnlock on the reading side that asked the store to free a Write
	barred  bool // a waiting writer may have blocked this call, or a call ahead of it
	forgets bool // after this loss of data, fencing tokens may restart
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

// now returns the time since the clock started. It never returns the same time twice, so that the
// order of two events is known even in virtual time. The caller must hold r.mu.
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

// Wipe calls f, which must make the store lose all locks. It records the loss, with a description
// of it.
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

// tagged returns a context that attributes steps to a call. A call for several locks has an op for
// each lock.
func tagged(ctx context.Context, ops ...*op) context.Context {
	return context.WithValue(ctx, opKey{}, ops)
}

// tag returns the call to which ctx attributes a step on the named lock, or nil.
func tag(ctx context.Context, name string) *op {
	ops, _ := ctx.Value(opKey{}).([]*op)
	for _, o := range ops {
		if len(ops) == 1 || o.name == name {
			return o
		}
	}
	return nil
}
