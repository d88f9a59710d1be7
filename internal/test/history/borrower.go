package history

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A Borrower is one user of one semaphore. A user has at most one call in progress, across all
// locks.
type Borrower struct {
	User      int           // from 0
	Client    int           // from 0
	Lease     time.Duration // the client's lease for renewed holds
	Semaphore *dlock.Semaphore
	Limit     int // limit of the Semaphore
	Recorder  *Recorder

	lent [loans]bool
}

// A Loan is a Borrower's hold on some permits.
type Loan struct {
	of    *Borrower
	h     *dlock.Hold // nil within Do
	ctx   context.Context
	place int
	count int
	held  int
}

// Full reports whether the borrower already has as many holds as the model allows (see loans).
func (b *Borrower) Full() bool { return b.free() < 0 }

func (b *Borrower) free() int {
	for i, lent := range b.lent {
		if !lent {
			return i
		}
	}
	return -1
}

func (b *Borrower) start(o op) *op {
	o.name, o.user, o.client, o.side, o.limit = b.Semaphore.Name(), b.User, b.Client,
		backend.Permits, b.Limit
	return b.Recorder.started(&o)
}

// ask records the start of a call that acquires n permits, and returns the options for the call.
// With Try and without Wait, the call makes a single attempt.
func (b *Borrower) ask(name string, n int, a Ask) (*op, []dlock.AcquireOption) {
	o := a.op(name, b.Lease)
	o.permits, o.loan = n, b.free()
	opts := a.options()
	if a.Try && a.Wait == 0 {
		opts = append(opts, dlock.Wait(0))
	}
	return b.start(o), opts
}

// acquired records the result of a call whose start was recorded by the method ask. It returns nil
// if the call failed.
func (b *Borrower) acquired(o *op, err error) *Loan {
	res := failed
	switch {
	case err == nil:
		res = yes
		b.lent[o.loan] = true
	case errors.Is(err, dlock.ErrNoLimit):
		res = untold
	case errors.Is(err, dlock.ErrTooMany):
		res = tooMany
	case errors.Is(err, dlock.ErrConflict):
		res = conflict
	case errors.Is(err, dlock.ErrHeld) && !o.waits:
		res = no
	}
	b.Recorder.ended(o, res, err)
	if res != yes {
		return nil
	}
	return &Loan{of: b, place: o.loan, count: o.permits, held: 1}
}

// Take acquires n permits. It returns nil if that failed.
func (b *Borrower) Take(ctx context.Context, n int, a Ask) *Loan {
	o, opts := b.ask("Acquire", n, a)
	h, err := b.Semaphore.Acquire(tagged(ctx, o), n, opts...)
	l := b.acquired(o, err)
	if l != nil {
		l.h, l.ctx = h, h.Context()
	}
	return l
}

// Do acquires permits and calls f while they are held. It reports whether they were acquired.
func (b *Borrower) Do(ctx context.Context, n int, a Ask, f func(*Loan)) bool {
	first, opts := b.ask("Do", n, a)
	var last *op
	var l *Loan
	err := b.Semaphore.Do(tagged(ctx, first), n, func(in context.Context) error {
		l = b.acquired(first, nil)
		l.ctx = in
		f(l)
		last = l.start(op{kind: unlock, text: "end of Do"})
		return nil
	}, opts...)
	if last == nil {
		b.acquired(first, err)
		return false
	}
	l.returned(last, err)
	return true
}

// Available calls the semaphore's Available method, and records the answer.
func (b *Borrower) Available(ctx context.Context) {
	o := b.start(op{kind: available, text: "Available"})
	n, err := b.Semaphore.Available(tagged(ctx, o))
	o.count = n
	res := failed
	switch {
	case err == nil:
		res = yes
	case errors.Is(err, dlock.ErrNoLimit):
		res = untold
	}
	b.Recorder.ended(o, res, err)
}

func (l *Loan) start(o op) *op {
	o.loan, o.permits, o.held = l.place, l.count, l.held
	return l.of.start(o)
}

// Context returns the context of the hold.
func (l *Loan) Context() context.Context { return l.ctx }

// Check reports whether the permits are still valid according to their holder's clock, and records
// the answer.
func (l *Loan) Check() bool {
	o := l.start(op{kind: check, text: "valid?"})
	res := no
	if l.ctx.Err() == nil {
		res = yes
	}
	l.of.Recorder.ended(o, res, nil)
	return res == yes
}

// Return gives back the permits.
func (l *Loan) Return(ctx context.Context) {
	o := l.start(op{kind: unlock, text: "Release"})
	l.returned(o, l.h.Release(tagged(ctx, o)))
}

func (l *Loan) returned(o *op, err error) {
	l.of.Recorder.ended(o, released(err), err)
	l.held, l.of.lent[l.place] = 0, false
}
