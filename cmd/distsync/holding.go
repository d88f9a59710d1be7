package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A holding waits for a lock, holds it, and reports events. The commands run and hold use it.
type holding struct {
	taker    *taker
	name     string
	out      io.Writer // where events are printed
	alone    bool      // no command is run, so normal events of the lock are also printed
	signals  chan os.Signal
	renewals chan dlock.RenewDone

	hold *dlock.Hold
	lost error // why the lock was, or is about to be, lost
}

// newHolding returns a holding, which catches the signals that end a wait from now on. It catches
// them until the program ends, so that a late signal doesn't change the exit status.
func newHolding(k *taker, name string, out io.Writer) *holding {
	s := &holding{taker: k, name: name, out: out,
		signals: make(chan os.Signal, 64), renewals: make(chan dlock.RenewDone, 16)}
	s.listen(ending)
	// If the reader of our messages exits, a write causes SIGPIPE. If it is caught, it doesn't end
	// the program.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return s
}

// listen catches signals, except those that the parent process has set to be ignored, as nohup(1)
// does.
func (s *holding) listen(signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(s.signals, sig)
		}
	}
}

// under waits for the lock, and calls do while the lock is held. Until do calls waited, a signal
// ends the context of do.
func (s *holding) under(
	ctx context.Context, do func(ctx context.Context, waited func()) error,
) error {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	waited := s.interruptible(interrupt)
	defer waited()
	store, err := s.taker.connect(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer store.close()
	if least := store.Limits().MinLease; s.taker.lease < least {
		return exitf(exitUsage, "--lease %v: this store wants at least %v", s.taker.lease, least)
	}
	c := dlock.New(store.Backend, dlock.WithLease(s.taker.lease),
		dlock.WithLogger(slog.New(slog.DiscardHandler)),
		dlock.WithTrace(&dlock.Trace{RenewDone: s.renewed}))
	defer c.Close()
	s.tell("waiting", nil)
	began := time.Now()
	s.hold, err = s.taker.acquire(ctx, c, s.name)
	if err != nil {
		waited()
		s.leaveNothing(c)
		return interrupted(ctx, s.taker.refused(store, s.explained(c, err)))
	}
	s.tell("acquired", func(p *progress) {
		p.Holder, p.Waited = s.hold.HolderID(), secondsOf(time.Since(began))
		p.Token, _ = s.hold.Token()
	})
	return do(ctx, waited)
}

// explained adds a reason to the error of an acquisition: the lock's holder, or that the lock's
// name belongs to other data. It returns err unchanged if the store doesn't answer within a second.
func (s *holding) explained(c *dlock.Client, err error) error {
	conflict := errors.Is(err, dlock.ErrConflict)
	if !conflict && !errors.Is(err, dlock.ErrHeld) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, failed := c.Inspect(ctx, s.name)
	switch {
	case conflict && errors.Is(failed, dlock.ErrConflict):
		return failed // unlike err, it doesn't quote a script's error
	case conflict && failed == nil && (len(info.Holders) > 0 || info.Kind == backend.Permits):
		return fmt.Errorf("%w: %s: %s", dlock.ErrConflict, printable(s.name), stateOf(&info))
	case conflict, failed != nil, len(info.Holders) == 0:
		return err
	}
	return fmt.Errorf("%w: %s has it", err, printable(info.Holders[0].ID))
}

// interruptible calls interrupt for the first signal that comes before end is called. After end has
// returned, interrupt is no longer called. end may be called several times.
func (s *holding) interruptible(interrupt context.CancelCauseFunc) (end func()) {
	over, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		select {
		case sig := <-s.signals:
			interrupt(exit(128+int(sig.(syscall.Signal)), nil))
		case <-over:
		}
	}()
	return sync.OnceFunc(func() { close(over); <-idle })
}

// interrupted returns the cause if ctx has ended, such as a signal, and otherwise err.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// leaveNothing waits until the store holds no trace of a failed wait: no lock of this client, and
// no place in line. It gives up after the store timeout, or at another signal. If an attempt got no
// answer, the client releases in the background whatever the attempt may have acquired, until the
// client is closed.
func (s *holding) leaveNothing(c *dlock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), s.taker.timeout)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer s.interruptible(interrupt)()
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 100*time.Millisecond) {
		l, err := c.Inspect(ctx, s.name)
		switch {
		case errors.Is(err, errors.ErrUnsupported), backend.KindOf(err) == backend.Refused:
			return // this user may not inspect locks
		case err == nil && !knows(&l, c.ID()):
			return
		}
		time.Sleep(pause)
	}
}

// knows reports whether the lock's data names the client as a holder or as a waiter in line.
func knows(l *dlock.LockInfo, client string) bool {
	return slices.ContainsFunc(l.Holders, func(h dlock.Holder) bool {
		return h.Client == client
	}) ||
		slices.ContainsFunc(l.Line, func(id string) bool {
			return strings.HasPrefix(id, client+":")
		})
}

// renewed is called after each round of renewals.
func (s *holding) renewed(e dlock.RenewDone) {
	select {
	case s.renewals <- e:
	default: // the channel is full of earlier events, and one of those is enough
	}
}

// tellRenewal reports a failed round of renewals.
func (s *holding) tellRenewal(e dlock.RenewDone) {
	if e.Err != nil {
		s.tell("unrenewed", func(p *progress) { p.Error = e.Err.Error() })
	}
}

// lose records and reports that the lock is lost.
func (s *holding) lose(err error) {
	s.lost = err
	s.tell("lost", func(p *progress) { p.Reason, p.Error = reasonOf(err), err.Error() })
}

// release releases the lock. It returns an error only if the store hasn't released the lock yet. A
// loss isn't an error here: it is recorded in s.lost.
func (s *holding) release(ctx context.Context) error {
	err := s.hold.Release(ctx)
	switch _, known := errors.AsType[*dlock.Loss](s.lost); {
	case err == nil:
		s.tell("released", nil)
	case errors.Is(err, dlock.ErrLost) && !known:
		s.lose(err)
	case !errors.Is(err, dlock.ErrLost):
		s.tell("unreleased", func(p *progress) { p.Error = err.Error() })
		return err
	}
	return nil
}

// finish reports the final error as an event if the output is JSON. It returns the error that is
// still to be printed.
func (s *holding) finish(err error) error {
	if text := message(err); text != "" && s.taker.json {
		s.tell("failed", func(p *progress) { p.Error = text })
		return exit(statusOf(err), nil)
	}
	return err
}

// tell reports an event. fill adds details, unless it is nil.
func (s *holding) tell(event string, fill func(*progress)) {
	p := &progress{Time: time.Now(), nameJSON: jsonName(s.name), Event: event}
	if fill != nil {
		fill(p)
	}
	switch text := p.text(s.name, s.alone); {
	case s.taker.json:
		_ = printJSON(s.out, p)
	case text != "" && !s.taker.quiet:
		fmt.Fprintln(s.out, text)
	}
}
