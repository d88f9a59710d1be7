// Package gather lets many goroutines share round trips and system calls. It puts commands that
// they send at about the same time into one batch. The backends for Redis, Valkey and PostgreSQL
// use it. It doesn't depend on their client libraries.
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
	// maxFlights is the default limit on the number of batches under way. Further commands wait
	// until a batch is answered. If only one batch could be under way, the client would be idle
	// while the server works, and the server while the client works.
	maxFlights = 6

	// maxBatch is the maximum number of Send calls that share a batch. It bounds how long a
	// goroutine waits for the answers to other goroutines' commands.
	maxBatch = 500

	// patience is the time after which the batches under way no longer count against the limit, if
	// none of them was answered. Their connections might hang while others work.
	patience = 50 * time.Millisecond

	// comeback is the longest time that a Sender waits for the next commands of callers that it has
	// just answered. It waits only if it allows just one batch at a time.
	comeback = 2 * time.Millisecond
)

// A Sender sends commands of type C for many goroutines. Each goroutine waits only for its own
// results, of type R, and only until its context ends. The first few commands are sent at once.
// Commands that come while these are under way are collected, and are sent together when one of the
// batches under way is answered. So a goroutine that is the only one to send never waits for
// others.
//
// Commands are sent without the values of their contexts, even if their batch has a single caller.
// Otherwise, a client library's hooks could get the values of another goroutine's context.
type Sender[C, R any] struct {
	send   func(context.Context, []C) []R
	recall func([]C) bool
	// most is the maximum number of flights. A flight is a goroutine that sends batches.
	most    int
	parcels sync.Pool

	mu sync.Mutex
	// flights is the number of flights, not counting overdue ones.
	flights int
	// overdue is the number of flights that were still sending when their round ended.
	overdue int
	// round is the number of the current round. A round ends, and the next begins, when all flights
	// seem to be stuck (see late).
	round int
	// yielding is the number of flights in the method yield. They will look for more parcels in a
	// moment.
	yielding int
	waiting  []*parcel[C, R] // parcels that wait to be sent
	// awaited is the number of parcels that letCome waits for, or 0. When that many are waiting,
	// back is closed.
	awaited int
	back    chan struct{} // closed when awaited parcels wait
	// taken counts how many times a flight has taken the waiting parcels to send them.
	taken int
	// watched reports whether a call of the method late is scheduled.
	watched bool
	landed  sync.Cond // signals the end of a flight
}

// A parcel holds the commands of one call to Send.
type parcel[C, R any] struct {
	ctx      context.Context
	commands []C
	results  []R
	answered chan struct{} // receives one value
	// batch is the batch that contains the parcel. It is guarded by Sender.mu.
	batch *batch[C, R]
}

// A batch holds the parcels that are sent together. It is also the context of their request, which
// ends when no caller waits for an answer any more.
type batch[C, R any] struct {
	// ctx is the caller's context if there is only one caller. If there are several, ctx is a
	// context that is canceled by calling end.
	ctx     context.Context
	parcels []*parcel[C, R]
	// round is the round in which the batch was taken. In that round, Sender.flights includes the
	// flight that sends the batch.
	round int
	// stay is the number of callers that still wait. It is guarded by Sender.mu.
	stay int
	end  context.CancelFunc
}

func (b *batch[C, R]) Deadline() (time.Time, bool) { return b.ctx.Deadline() }
func (b *batch[C, R]) Done() <-chan struct{}       { return b.ctx.Done() }
func (b *batch[C, R]) Err() error                  { return b.ctx.Err() }
func (b *batch[C, R]) Value(any) any               { return nil }

// New returns a Sender that sends commands with send. send returns the results in the order of the
// commands. It may be called by several goroutines at once.
//
// If recall isn't nil, it is called when the only caller of a batch stops waiting while the batch
// is under way. It returns true if the commands were not sent and, after this call, never will be.
func New[C, R any](send func(context.Context, []C) []R, recall func([]C) bool) *Sender[C, R] {
	s := &Sender[C, R]{send: send, recall: recall, most: maxFlights}
	s.landed.L = &s.mu
	s.parcels.New = func() any { return &parcel[C, R]{answered: make(chan struct{}, 1)} }
	return s
}

// Limit sets how many batches may be under way at once, and returns s. The default of 6 is for
// servers where a single command is cheap. If a batch costs little more than a single command, a
// lower limit is better, since it leads to larger batches. Call Limit before the first Send.
func (s *Sender[C, R]) Limit(flights int) *Sender[C, R] {
	s.most = flights
	return s
}

// Send sends commands together and returns their results. If ctx ends first, Send returns the error
// of ctx as a [backend.Error]. It is of kind [backend.Retry] if the commands were not sent and
// never will be. Otherwise it is of kind [backend.Unknown], and the caller must no longer change
// the commands.
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

// enqueue adds a parcel to the waiting ones, and starts a flight to send it if necessary.
func (s *Sender[C, R]) enqueue(p *parcel[C, R]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
	if s.yielding == 0 {
		s.start()
	} else if len(s.waiting) == s.awaited {
		s.awaited = 0
		close(s.back)
	}
}

// start starts a flight, which is a goroutine that sends waiting parcels. But if the maximum number
// of flights is reached, start only makes sure that a call of the method late is scheduled. The
// caller must hold s.mu.
func (s *Sender[C, R]) start() {
	if s.flights < s.most {
		s.flights++
		go s.fly(s.round)
	} else {
		s.watch()
	}
}

// watch schedules a call of the method late, unless one is already scheduled. The caller must hold
// s.mu.
func (s *Sender[C, R]) watch() {
	if s.watched {
		return
	}
	s.watched = true
	taken := s.taken
	time.AfterFunc(patience, func() { s.late(taken) })
}

// late starts a flight for the waiting parcels, if there are any and the limit allows another
// flight. It runs some time after it was scheduled by watch. If no flight has taken parcels since
// then, late first assumes that all flights are stuck. They become overdue, and no longer count
// toward the limit.
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

// leave ends the wait for a parcel that isn't answered yet. If the parcel hasn't been sent, it
// never will be.
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

// fly sends waiting parcels until none are left. It runs in a goroutine of its own, called a
// flight. The caller has already counted the flight in s.flights, in the given round.
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

// next returns the waiting parcels as a batch. If no parcels wait, or there are too many flights,
// it returns nil, and the calling goroutine ends.
func (s *Sender[C, R]) next(round int) *batch[C, R] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if round != s.round { // the flight was overdue, and counts again
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
		b.ctx, b.end = b.parcels[0].ctx, func() {} // the batch ends with its caller's context
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

// yield wakes the callers of a batch, and lets them run. Often they send their next commands at
// once. These commands then go in one batch, and need no new goroutine.
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
	if n := len(b.parcels); s.most == 1 && n > 1 && len(s.waiting) < n {
		s.letCome(n)
	}
	s.yielding--
	if s.waiting == nil {
		clear(b.parcels)
		s.waiting = b.parcels[:0] // reuse the slice
	}
}

// letCome waits a short time for n parcels. It is for a Sender that allows only one flight. Without
// this wait, commands that come just after the start of a flight would wait until its end, and
// batches would become smaller. The caller must hold s.mu, which is unlocked during the wait.
func (s *Sender[C, R]) letCome(n int) {
	// back is a local variable, since an overdue flight may replace s.back.
	back := make(chan struct{})
	s.awaited, s.back = n, back
	s.mu.Unlock()
	timer := time.NewTimer(comeback)
	select {
	case <-back:
	case <-timer.C:
	}
	timer.Stop()
	s.mu.Lock()
	s.awaited = 0
}

// Settle waits until nothing is under way.
func (s *Sender[C, R]) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.flights+s.overdue > 0 {
		s.landed.Wait()
	}
}
