package recipes

import (
	"context"
	"errors"

	"github.com/seed951563bd/distsync/dlock"
)

// A poller is a part of a program that something starts and stops. Only one of them may run anywhere.
type poller struct {
	lock   *dlock.Locker
	poll   func(ctx context.Context) error // until ctx ends
	failed func(error)                     // when it ends before that: it ends the program, say

	hold *dlock.Hold
	end  context.CancelCauseFunc
	done chan error
}

func (p *poller) startWrong(ctx context.Context) (err error) {
	p.hold, err = p.lock.Acquire(ctx)
	if err != nil {
		return err
	}
	go p.poll(p.hold.Context()) // which ends with ctx
	return nil
}

func (p *poller) stopWrong(ctx context.Context) error {
	return p.hold.Release(ctx) // now it may be another's, and then poll hears of it
}

// Start waits for the lock, for as long as ctx allows, and has poll called until Stop.
func (p *poller) Start(ctx context.Context) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	waiting := context.AfterFunc(ctx, func() { end(ctx.Err()) }) // ctx is for the wait only
	hold, err := p.lock.Acquire(life)
	if !waiting() && err == nil { // ctx has ended all the same
		err = errors.Join(ctx.Err(), hold.Release(life))
	}
	if err != nil {
		end(nil)
		return err
	}
	p.end, p.done = end, make(chan error, 1)
	go func() {
		err := p.poll(hold.Context())
		if life.Err() == nil {
			p.failed(errors.Join(err, hold.Err()))
		}
		p.done <- errors.Join(err, hold.Release(life)) // once poll has returned, and not before
	}()
	return nil
}

// Stop has poll end, and returns when the lock is given back.
func (p *poller) Stop(ctx context.Context) error {
	p.end(nil)
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it goes on, and so does the lock
	}
}
