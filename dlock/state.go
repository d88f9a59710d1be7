package dlock

import (
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// A state is a client's view of its locks. It has no store and no context, and does no I/O.
// The methods that change the state also decide what has to be done outside it, such as sending a
// request. They collect these actions in the state, and [Client.unlock] starts or performs them.
// What a rule changes for the calls that wait for a lock isn't done at once, either: see settle.
//
// The client's mutex guards the state. [Client.lock] returns the state, so a function that is given
// a *state, such as each method of state, runs with the mutex held. The mutex also guards what the
// tables refer to: objects, queues, claims and holds. Fields that it doesn't guard say so.
type state struct {
	*settings

	closed     bool
	number     uint64                                // of the last outermost acquisition
	attempts   uint64                                // how many attempts were made
	objects    [protocol.Families]map[string]*object // held or awaited locks, by family and name
	marked     []*object                             // see settle
	struckAt   instant                               // when this client last force-unlocked a lock
	lost       map[lostKey][]*hold                   // lost holds that haven't been unlocked yet
	losses     []*hold                               // the same holds, oldest first
	troubles   map[*claim]why                        // why these claims are in danger
	lastLosses []*Loss                               // oldest first
	lostHolds  counter                               // can be read without the mutex
	stalled    stall                                 // the last stall
	forgot     bool                                  // whether some lost holds were forgotten
	spare      *queue                                // for reuse
	crowds     map[lockKey]*crowd                    // other clients that should get a lock first
	streaks    streaks                               // the recent streaks
	takeBacks  takeBacks
	alarms     alarms      // by time
	timer      *time.Timer // calls rings at the first alarm
	armed      instant     // when the timer rings
	rings      func()      // called without the mutex
	settles    func()      // called before the mutex is unlocked
	polls      bool        // whether it was logged that the client polls instead of subscribing

	// What unlock does, in this order.
	starts  []func(*Client) // start goroutines, before the mutex is unlocked
	ends    []func()        // end contexts and subscriptions
	tales   []func(*Client) // call traces
	records []record        // are written to the log
}

// make initializes the state of a new client.
func (s *state) make(set *settings, rings, settles func()) {
	s.settings, s.rings, s.settles = set, rings, settles
	s.lost = make(map[lostKey][]*hold)
	s.crowds = make(map[lockKey]*crowd)
	for f := range s.objects {
		s.objects[f] = make(map[string]*object)
	}
}

// The settings of a client don't change after New, so they need no mutex.
type settings struct {
	id       string
	lease    time.Duration
	handover time.Duration
	epoch    time.Time      // instants are measured from this time, on the monotonic clock
	limits   backend.Limits // of the store
	notifies bool           // whether the store can send messages
	inspects bool           // whether the store can say who holds a lock
}

// An instant is a time on the client's monotonic clock.
type instant = time.Duration

func (set *settings) now() instant { return time.Since(set.epoch) }

// stored returns the lease to request from the store if the caller wants the lease d.
func (set *settings) stored(d time.Duration) time.Duration {
	d = max(d, set.limits.MinLease)
	step := max(set.limits.LeaseStep, time.Millisecond)
	return (d + step - 1) / step * step
}

// start arranges for the given function to be called just before the mutex is unlocked. That
// function is allowed to start goroutines, but must do nothing else that takes time.
func (s *state) start(start func(*Client)) {
	if !s.closed {
		s.starts = append(s.starts, start)
	}
}

// background arranges for f to run in a goroutine that Close waits for. It does nothing if the
// client is closed.
func (s *state) background(f func(*Client)) {
	s.start(func(c *Client) { c.store.Go(func() { f(c) }) })
}

// later arranges for a function to be called after the mutex is unlocked.
func (s *state) later(end func()) { s.ends = append(s.ends, end) }

// trace arranges for a function to be called after the mutex is unlocked, and after all functions
// that were given to [state.later].
func (s *state) trace(tell func(*Client)) { s.tales = append(s.tales, tell) }

// nextOwner returns a unique owner string for an acquisition that isn't a re-entry. It contains the
// caller's note, if any. The note comes before the last colon, since stores split an owner string
// there.
func (s *state) nextOwner(note string) string {
	s.number++
	owner := make([]byte, 0, 64)
	owner = append(owner, s.id...)
	if note != "" {
		owner = append(append(owner, noteMark...), note...)
	}
	owner = append(owner, ':')
	return string(strconv.AppendUint(owner, s.number, 10))
}

// kept returns d, the time for which a released lock must stay taken, rounded up to whole
// milliseconds.
func kept(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// afterEvent is set in tests, to check the client's tables each time its mutex is unlocked.
var afterEvent func(*Client)

// lock locks c.mu, and returns what it guards.
func (c *Client) lock() *state {
	c.mu.Lock()
	return &c.state
}

// unlock settles the locks that were marked, starts the goroutines that were requested while c.mu
// was locked, and unlocks c.mu. Then it does the work that must not be done under c.mu: it ends
// contexts and subscriptions, then calls traces, and then writes log records.
func (c *Client) unlock() {
	s := &c.state
	if len(s.marked) > 0 {
		s.settles()
	}
	if afterEvent != nil {
		afterEvent(c)
	}
	starts, ends, tales, records := s.starts, s.ends, s.tales, s.records
	s.starts, s.ends, s.tales, s.records = nil, nil, nil, nil
	for _, start := range starts {
		start(c)
	}
	c.mu.Unlock()
	for _, end := range ends {
		end()
	}
	for _, tell := range tales {
		tell(c)
	}
	c.log.add(records...)
}
