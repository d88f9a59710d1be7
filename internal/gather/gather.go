// Package gather lets many goroutines share round trips and system calls: what they send at about
// the same time goes together. It is for both clients of servers that speak the protocol of Redis,
// and knows neither.
package gather

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// maxFlights is how many batches are under way at a time before what comes has to wait for one
	// of them. With one, client and server would work by turns.
	maxFlights = 6

	// maxBatch is how many parcels go together. It bounds how long one waits for the answers to
	// others.
	maxBatch = 500

	// patience is how long nothing may land before what is under way isn't counted any more. Some
	// connections may hang while others are fine.
	patience = 50 * time.Millisecond

	// maxYields is how often others run before the only flight goes on although more comes.
	maxYields = 4
)

// A Sender sends commands C for many goroutines, each of which waits for its own results R only, and
// no longer than its context. What the first few send goes at once. What comes while that is under
// way gathers, and goes together when the first of them is answered. So whoever is alone waits for
// nobody.
//
// What is sent has nobody's context values, whether it goes together with others or not: hooks of
// a client that read them would else see another's, or sometimes their own.
type Sender[C, R any] struct {
	send    func(context.Context, []C) []R
	recall  func([]C) bool
	most    int // flights at a time
	parcels sync.Pool

	mu       sync.Mutex
	flights  int             // goroutines that send, without those that are overdue
	overdue  int             // those that sent for too long when a round ended
	round    int             // how often there were such
	yielding int             // how many are about to look for more
	waiting  []*parcel[C, R] // for one of them
	taken    int             // how often one has taken what waits
	watched  bool            // late will be called
	landed   sync.Cond       // nothing is under way
}

// A parcel is what one caller sends together.
type parcel[C, R any] struct {
	ctx      context.Context
	commands []C
	results  []R
	answered chan struct{} // gets one value
	batch    *batch[C, R]  // that it is sent with; guarded by Sender.mu
}

// A batch is what several callers send together. It ends when the last of them has left. It is the
// context that it is sent with.
type batch[C, R any] struct {
	ctx     context.Context // of its only caller, or one that end ends
	parcels []*parcel[C, R]
	round   int // in which its flight counts
	stay    int // guarded by Sender.mu
	end     context.CancelFunc
}

func (b *batch[C, R]) Deadline() (time.Time, bool) { return b.ctx.Deadline() }
func (b *batch[C, R]) Done() <-chan struct{}       { return b.ctx.Done() }
func (b *batch[C, R]) Err() error                  { return b.ctx.Err() }
func (b *batch[C, R]) Value(any) any               { return nil }

// New returns a Sender that sends with the function, which returns the results of the commands in
// their order. It may be called by several goroutines at once.
//
// If recall isn't nil, it is called when the only caller of a batch leaves while that is under way. It
// says whether the commands were not sent and, now that it was called, never will be.
func New[C, R any](send func(context.Context, []C) []R, recall func([]C) bool) *Sender[C, R] {
	s := &Sender[C, R]{send: send, recall: recall, most: maxFlights}
	s.landed.L = &s.mu
	s.parcels.New = func() any { return &parcel[C, R]{answered: make(chan struct{}, 1)} }
	return s
}

// Limit sets how many batches are under way at a time before what comes has to wait for one of
// them, and returns s. The default is 6, for servers to which a command of its own is cheap. Where
// a batch costs hardly more than one command does, fewer flights make larger batches. It is called
// before the first Send.
func (s *Sender[C, R]) Limit(flights int) *Sender[C, R] {
	s.most = flights
	return s
}

// Send sends commands in one piece and returns their results. If ctx ends before these are there, it
// returns its error: of kind [backend.Retry] if nothing was sent, and nothing will be; else of kind
// [backend.Unknown]. Then the commands are not the caller's any more.
func (s *Sender[C, R]) Send(ctx context.Context, commands ...C) ([]R, error) {
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Kind: backend.Retry, Err: err}
	}
	p := s.parcels.Get().(*parcel[C, R])
	p.ctx, p.commands = ctx, commands
	s.enqueue(p)
	select {
	case <-p.answered:
	case <-ctx.Done():
		if kind, left := s.leave(p); left {
			return nil, &backend.Error{Kind: kind, Err: ctx.Err()}
		}
	}
	results := p.results
	*p = parcel[C, R]{answered: p.answered}
	s.parcels.Put(p)
	return results, nil
}

// enqueue sees to it that a parcel is sent.
func (s *Sender[C, R]) enqueue(p *parcel[C, R]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
	if s.yielding == 0 {
		s.start()
	}
}

// start starts a flight, unless there are enough. s.mu is held.
func (s *Sender[C, R]) start() {
	if s.flights < s.most {
		s.flights++
		go s.fly(s.round)
	} else {
		s.watch()
	}
}

// watch looks after a while whether what waits still does. s.mu is held.
func (s *Sender[C, R]) watch() {
	if s.watched {
		return
	}
	s.watched = true
	taken := s.taken
	time.AfterFunc(patience, func() { s.late(taken) })
}

// late starts a flight for what waits, if there is anything. If nobody has taken up what waits since
// watch was called, all that were under way then still are: they are overdue.
func (s *Sender[C, R]) late(taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = false
	if len(s.waiting) == 0 {
		return
	}
	if s.taken == taken {
		s.overdue += s.flights
		s.flights = 0
		s.round++
	}
	s.start()
}

// leave gives a parcel up, unless it is answered. One that still waits won't be sent.
func (s *Sender[C, R]) leave(p *parcel[C, R]) (kind backend.ErrorKind, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, p); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		return backend.Retry, true
	}
	select {
	case <-p.answered:
		return 0, false
	default:
	}
	if len(p.batch.parcels) == 1 && s.recall != nil && s.recall(p.commands) {
		return backend.Retry, true
	}
	if p.batch.stay--; p.batch.stay == 0 {
		p.batch.end()
	}
	return backend.Unknown, true
}

// fly sends what waits, until nothing does. It is given the round in which it was counted.
func (s *Sender[C, R]) fly(round int) {
	for {
		b := s.next(round)
		if b == nil {
			return
		}
		round = b.round
		s.deliver(b)
		s.yield(b)
	}
}

// next returns what waits. If nothing does, or there are flights enough, the one that asks is over.
func (s *Sender[C, R]) next(round int) *batch[C, R] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if round != s.round { // it was overdue, and isn't any more
		s.overdue--
		s.flights++
	}
	if len(s.waiting) == 0 || s.flights > s.most {
		s.flights--
		s.landed.Broadcast()
		if len(s.waiting) > 0 {
			s.watch()
		}
		return nil
	}
	b := &batch[C, R]{parcels: s.waiting, round: s.round}
	s.waiting = nil
	s.taken++
	if len(b.parcels) > maxBatch {
		b.parcels, s.waiting = b.parcels[:maxBatch:maxBatch], b.parcels[maxBatch:]
		s.start()
	}
	b.stay = len(b.parcels)
	for _, p := range b.parcels {
		p.batch = b
	}
	if b.stay == 1 {
		b.ctx, b.end = b.parcels[0].ctx, func() {} // it ends with its caller's context
	} else {
		b.ctx, b.end = context.WithCancel(context.Background())
	}
	return b
}

// deliver sends a batch.
func (s *Sender[C, R]) deliver(b *batch[C, R]) {
	defer b.end()
	if len(b.parcels) == 1 {
		b.parcels[0].results = s.send(b, b.parcels[0].commands)
		return
	}
	var commands []C
	for _, p := range b.parcels {
		commands = append(commands, p.commands...)
	}
	results := s.send(b, commands)
	for _, p := range b.parcels {
		n := len(p.commands)
		p.results, results = results[:n:n], results[n:]
	}
}

// yield tells those who wait for a batch, and lets them run: often they come back at once, and so
// their next commands go together, too, with no new goroutine.
func (s *Sender[C, R]) yield(b *batch[C, R]) {
	s.mu.Lock()
	s.yielding++
	s.mu.Unlock()
	for _, p := range b.parcels {
		p.answered <- struct{}{}
	}
	runtime.Gosched()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == 1 && len(b.parcels) > 1 {
		s.letCome()
	}
	s.yielding--
	if s.waiting == nil {
		clear(b.parcels)
		s.waiting = b.parcels[:0] // its room is used again
	}
}

// letCome lets others run while more comes, but not for long. Where there is one flight at a time,
// what comes just after it has begun waits for all of it, and the next is as much smaller. s.mu is
// held, but not all the time.
func (s *Sender[C, R]) letCome() {
	for n, before := 0, -1; n < maxYields && len(s.waiting) > before; n++ {
		before = len(s.waiting)
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
}

// Settle returns when nothing is under way.
func (s *Sender[C, R]) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.flights+s.overdue > 0 {
		s.landed.Wait()
	}
}
