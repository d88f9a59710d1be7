package history

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A kind is a kind of call.
type kind uint8

const (
	acquire kind = iota // any acquiring call, re-entries too
	unlock
	check // of the holder's own clock: is the hold still valid?
	isHeld
	holdCount
	isLocked
	forceUnlock
	available
	wipe // not a call: the store loses everything
)

// A result is what a call answered.
type result uint8

const (
	yes      result = iota // acquired, unlocked, valid, held, locked, freed by force
	no                     // held by another, over, not held, not locked, was not locked
	lost                   // ErrLost
	notHeld                // ErrNotHeld
	upgrade                // ErrUpgrade
	conflict               // ErrConflict
	untold                 // ErrNoLimit
	tooMany                // ErrTooMany
	failed                 // any other error: nobody knows
)

// A reentry says whether an acquisition was one.
type reentry uint8

const (
	fresh   reentry = iota
	perhaps         // no request of its own brought it about
	again
)

// forever is when what has no end ends.
const forever = time.Duration(1<<63 - 1)

// An op is one call.
type op struct {
	id     int
	kind   kind
	side   backend.Kind // which kind of lock it is for
	name   string
	user   int
	client int
	call   time.Duration
	ret    time.Duration
	result result
	count  int // what holdCount or available answered
	text   string
	err    error

	lease time.Duration // of an acquisition
	fixed bool          // it isn't renewed
	held  int           // how many holds of that side the user had when it called, by its own count
	reads int           // how many Reads
	asked bool          // the hold was asked for its number, which is token; 0: it has none
	token uint64
	given bool // somebody else asked for it, at a time that its steps tell
	gated bool // perhaps it waited for others who use the same Locker
	waits bool // it waits for the lock

	rounds bool   // it may have had the lock, and given it back, before it got it or failed
	holder string // the owner of what it has got then

	// Of a semaphore.
	permits     int
	limit       int  // how many there are, as the call says; 0: as many as the store was told
	loan        int  // which of the user's holds
	least, most int  // how many there are
	out         int  // how many the store may have known to be out at a time during the call, at most
	crowded     bool // others of the client were asking at that time

	// What the steps in the store tell of it.
	granter  *step   // the request that brought about a hold; nil if it was handed on, or is none
	number   *number // of the hold, if it is one and that is known
	reentry  reentry
	doomed   bool          // the hold was handed on, and perhaps struck before that
	granted  time.Duration // when the store granted it, at the earliest
	end      time.Duration // until when the hold of an acquisition cannot end by itself
	prolongs time.Duration // until when a re-entry keeps it from that
	until    time.Duration // when it is over in the store at the latest
	ghost    bool          // a request without an answer may have held the lock meanwhile
	shaken   bool          // a hold whose requests have not all been answered
	murky    bool          // an unlock that perhaps can't know who freed the lock, since a release was lost on its way
	joined   bool          // a Read that shares what its client has
	lent     bool          // and perhaps that is a Write
	lined    bool          // it stood in line, and the store gave it the lock
	barred   bool          // a writer's note may have kept it, or who was before it, from reading
	forgets  bool          // a loss of data, which takes the last number with it
}

// A Recorder notes what happens. Its methods may be called concurrently.
type Recorder struct {
	clock func() time.Duration
	tell  *json.Encoder // nil: nobody is told

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

// now returns the time, which never stands still: so that of two events the later one is seen to be
// later, even in a bubble of virtual time. r.mu is held.
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

// Wipe records that the store loses all locks, on the way through f.
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

// tagged returns a context from which the steps of a call are known: of one for several locks, as of several calls.
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
