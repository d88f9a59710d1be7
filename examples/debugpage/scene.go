package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

const lease = 6 * time.Second // short: what was lost is seen after a third of it

// A scene is locks in play.
type scene struct {
	ctx   context.Context
	leave context.CancelFunc // ends waits
	waits sync.WaitGroup
	holds []*dlock.Hold
	err   error // the first
}

// play has two clients use locks. The scene is to be ended even if there is an error.
func play(ctx context.Context, here, elsewhere *dlock.Client) (*scene, error) {
	s := new(scene)
	s.ctx, s.leave = context.WithCancel(ctx)

	s.hold(here.Locker("deploy:production"))
	s.hold(here.FencedLocker("account:7"))
	s.hold(here.RWLocker("prices").Reader())
	s.holdPermits(here.Semaphore("slots:mailer", 10), 3)
	s.holdPermits(elsewhere.Semaphore("slots:mailer", 10), 2)
	s.hold(elsewhere.RWLocker("prices").Reader())
	s.hold(here.Locker("report:nightly"), dlock.FixedLease(time.Hour))
	s.hold(here.Locker("export:ledger"), dlock.FixedLease(time.Minute))
	s.hold(here.Locker("import:feeds"), dlock.FixedLease(2*time.Second)) // it is over soon

	s.hold(elsewhere.Locker("orders:1041"))
	s.hold(elsewhere.FairLocker("till:3"))
	s.wait(here.Locker("deploy:production"))
	s.wait(here.Locker("orders:1041"), dlock.Wait(10*time.Minute))
	s.wait(here.FairLocker("till:3"))
	s.wait(here.RWLocker("prices").Writer())

	// One is taken away, as an operator would do it, and one by the client itself.
	s.hold(here.Locker("orders:1042"))
	s.force(elsewhere.Locker("orders:1042"))
	s.hold(elsewhere.Locker("orders:1042"))
	s.hold(here.Locker("cache:warm"))
	s.force(here.Locker("cache:warm"))
	return s, s.err
}

func (s *scene) hold(l *dlock.Locker, opts ...dlock.AcquireOption) {
	if s.err == nil {
		s.keep(l.Acquire(s.ctx, opts...))
	}
}

func (s *scene) holdPermits(p *dlock.Semaphore, n int) {
	if s.err == nil {
		s.keep(p.Acquire(s.ctx, n))
	}
}

func (s *scene) keep(h *dlock.Hold, err error) {
	if s.err = err; err == nil {
		s.holds = append(s.holds, h)
	}
}

func (s *scene) force(l *dlock.Locker) {
	if s.err == nil {
		_, s.err = l.ForceUnlock(s.ctx)
	}
}

// wait waits for a lock until the scene ends, or holds it.
func (s *scene) wait(l *dlock.Locker, opts ...dlock.AcquireOption) {
	s.waits.Go(func() {
		l.Do(s.ctx, func(ctx context.Context) error { <-ctx.Done(); return nil }, opts...)
	})
}

// end gives back what is held.
func (s *scene) end() {
	s.leave()
	s.waits.Wait()
	for _, h := range s.holds {
		if err := h.Release(context.Background()); err != nil && !errors.Is(err, dlock.ErrLost) && s.err == nil {
			s.err = err
		}
	}
}
