package recipes

import (
	"context"
	"errors"

	"github.com/seed951563bd/distsync/dlock"
)

// A poller is a component with methods Start and Stop. Only one process may run it at a time.
type poller struct {
	lock   *dlock.Locker
	poll   func(ctx context.Context) error // until ctx ends
	failed func(error)                     // called if poll ends early

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
	return p.hold.Release(ctx) // another process may get the lock while poll still runs
}

// Start waits for the lock as long as ctx allows, and then starts poll, which runs until Stop.
func (p *poller) Start(ctx context.Context) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	waiting := context.AfterFunc(ctx, func() { end(ctx.Err()) }) // ctx is for the wait only
	hold, err := p.lock.Acquire(life)
	if !waiting() && err == nil { // ctx ended during the call
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

// Stop makes poll end, and returns when poll has ended and the lock is released.
func (p *poller) Stop(ctx context.Context) error {
	p.end(nil)
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // poll continues, and keeps the lock
	}
}
