package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

type limiter chan struct{} // make(limiter, 10)

func (l limiter) callWrong(ctx context.Context, send func(context.Context) error) error {
	l <- struct{}{}
	defer func() { <-l }()
	return send(ctx)
}

// errTryAgain is the service's answer if the caller should try again later.
var errTryAgain = errors.New("try again")

func callWithPermitWrong(
	ctx context.Context, slots *dlock.Semaphore, send func(context.Context) error,
) error {
	return slots.Do(ctx, 1, func(ctx context.Context) error {
		for pause := time.Second; ; pause *= 2 {
			if err := send(ctx); !errors.Is(err, errTryAgain) {
				return err
			}
			if err := sleep(ctx, pause); err != nil { // the permit stays taken during the pause
				return err
			}
		}
	})
}

// A partner is a service that allows ten calls at once, from all replicas together.
type partner struct {
	slots *dlock.Semaphore // client.Semaphore("slots:partner", 10)
	line  chan struct{}    // calls waiting here: make(chan struct{}, 100)
}

var errBusy = errors.New("too many wait already")

func (p *partner) call(ctx context.Context, send func(context.Context) error) error {
	for pause := time.Second; ; pause *= 2 {
		if err := p.callOnce(ctx, send); !errors.Is(err, errTryAgain) {
			return err
		}
		if err := sleep(ctx, pause); err != nil { // another call may have the permit meanwhile
			return err
		}
	}
}

func (p *partner) callOnce(ctx context.Context, send func(context.Context) error) error {
	select {
	case p.line <- struct{}{}:
	default:
		return errBusy // in a handler that is 503, or 429
	}
	permit, err := p.slots.Acquire(ctx, 1, dlock.Wait(5*time.Second))
	<-p.line
	if err != nil {
		return err
	}
	defer permit.Release(ctx)
	// Without a time limit a call that hangs would keep its permit.
	ctx, cancel := context.WithTimeout(permit.Context(), 10*time.Second)
	defer cancel()
	return send(ctx)
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
