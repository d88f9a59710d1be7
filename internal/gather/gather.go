// Package gather lets many goroutines share round trips and system calls: what they send at about
// the same time goes together. It is for both clients of servers that speak the protocol of Redis,
// and knows neither.
package gather

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// maxFlights is how many batches are under way at a time before what comes has to wait for one
	// of them. With one, client and server would work by turns.
	maxFlights = 6

	// maxBatch is how many parcels go together. It bounds how long one waits for the answers to
	// others.
	maxBatch = 500
)

// A Sender sends commands C for many goroutines, each of which waits for its own results R only, and
// no longer than its context. What the first few send goes at once. What comes while that is under
// way gathers, and goes together when the first of them is answered. So whoever is alone waits for
// nobody.
type Sender[C, R any] struct {
	send    func(context.Context, []C) []R
	parcels sync.Pool

	mu       sync.Mutex
	flights  int             // goroutines that send
	yielding int             // of these, how many are about to look for more
	waiting  []*parcel[C, R] // for one of them
	landed   sync.Cond       // flights is 0
}

// A parcel is what one caller sends together.
type parcel[C, R any] struct {
	ctx      context.Context
	commands []C
	results  []R
	answered chan struct{} // gets one value
	batch    *batch[C, R]  // that it is sent with; guarded by Sender.mu
}

// A batch is what several callers send together. It ends when the last of them has left.
type batch[C, R any] struct {
	parcels []*parcel[C, R]
	stay    int // guarded by Sender.mu
	end     context.CancelFunc
}

// New returns a Sender that sends with the function, which returns the results of the commands in
// their order. It may be called by several goroutines at once.
func New[C, R any](send func(context.Context, []C) []R) *Sender[C, R] {
	s := &Sender[C, R]{send: send}
	s.landed.L = &s.mu
	s.parcels.New = func() any { return &parcel[C, R]{answered: make(chan struct{}, 1)} }
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
	if s.flights < maxFlights {
		s.flights++
		go s.fly()
	}
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
	if p.batch.stay--; p.batch.stay == 0 {
		p.batch.end()
	}
	return backend.Unknown, true
}

// fly sends what waits, until nothing does.
func (s *Sender[C, R]) fly() {
	for {
		ctx, b := s.next()
		if b == nil {
			return
		}
		s.deliver(ctx, b)
		s.yield(b)
	}
}

// next returns what waits, with a context for it. If nothing waits, the flight is over.
func (s *Sender[C, R]) next() (context.Context, *batch[C, R]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.flights--
		s.landed.Broadcast()
		return nil, nil
	}
	b := &batch[C, R]{parcels: s.waiting}
	s.waiting = nil
	if len(b.parcels) > maxBatch {
		b.parcels, s.waiting = b.parcels[:maxBatch:maxBatch], b.parcels[maxBatch:]
		s.start()
	}
	b.stay = len(b.parcels)
	for _, p := range b.parcels {
		p.batch = b
	}
	ctx := b.parcels[0].ctx
	if b.stay == 1 {
		b.end = func() {} // it ends with its caller's context
		return ctx, b
	}
	ctx, b.end = context.WithCancel(context.WithoutCancel(ctx))
	return ctx, b
}

// deliver sends a batch.
func (s *Sender[C, R]) deliver(ctx context.Context, b *batch[C, R]) {
	defer b.end()
	if len(b.parcels) == 1 {
		b.parcels[0].results = s.send(ctx, b.parcels[0].commands)
		return
	}
	var commands []C
	for _, p := range b.parcels {
		commands = append(commands, p.commands...)
	}
	results := s.send(ctx, commands)
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
	s.yielding--
	if s.waiting == nil {
		clear(b.parcels)
		s.waiting = b.parcels[:0] // its room is used again
	}
}

// Settle returns when nothing is under way.
func (s *Sender[C, R]) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.flights > 0 {
		s.landed.Wait()
	}
}
