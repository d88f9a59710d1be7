package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

const lease = 6 * time.Second // short, so that losses are found soon

// A scene holds the locks of the demonstration.
type scene struct {
	ctx   context.Context
	leave context.CancelFunc // ends the waits
	waits sync.WaitGroup
	holds []*dlock.Hold
	err   error // the first error
}

// play makes two clients use locks. The caller must call end, even after an error.
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
	s.hold(here.Locker("import:feeds"), dlock.FixedLease(2*time.Second)) // this lease expires soon

	s.hold(elsewhere.Locker("orders:1041"))
	s.hold(elsewhere.FairLocker("till:3"))
	s.wait(here.Locker("deploy:production"))
	s.wait(here.Locker("orders:1041"), dlock.Wait(10*time.Minute))
	s.wait(here.FairLocker("till:3"))
	s.wait(here.RWLocker("prices").Writer())

	// Another client forces the release of one lock, as an operator would. This client forces the
	// release of a second lock itself.
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

// wait waits for a lock in a goroutine, until the scene ends. If the goroutine gets the lock, it
// holds it until then.
func (s *scene) wait(l *dlock.Locker, opts ...dlock.AcquireOption) {
	s.waits.Go(func() {
		l.Do(s.ctx, func(ctx context.Context) error { <-ctx.Done(); return nil }, opts...)
	})
}

// end ends the waits, and releases all holds.
func (s *scene) end() {
	s.leave()
	s.waits.Wait()
	for _, h := range s.holds {
		if err := h.Release(context.Background()); err != nil && !errors.Is(err, dlock.ErrLost) &&
			s.err == nil {
			s.err = err
		}
	}
}
