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

// A holding waits for a lock, holds it, and tells of that: what run and hold have in common.
type holding struct {
	taker    *taker
	name     string
	out      io.Writer // where events are told
	alone    bool      // there is no command: the lock is all that there is to tell of
	signals  chan os.Signal
	renewals chan dlock.RenewDone

	hold *dlock.Hold
	lost error // why the lock is lost, or about to be
}

// newHolding lets signals come to us that end a wait, until end is called.
func newHolding(k *taker, name string, out io.Writer) (s *holding, end func()) {
	s = &holding{taker: k, name: name, out: out,
		signals: make(chan os.Signal, 64), renewals: make(chan dlock.RenewDone, 16)}
	s.listen(ending)
	// Those who read our messages may go: that ends nothing.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return s, func() { signal.Stop(s.signals) }
}

// listen lets signals come to us, but for those that whoever started us wants ignored, as nohup(1)
// does.
func (s *holding) listen(signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(s.signals, sig)
		}
	}
}

// under waits for the lock, and calls do while it is held. Until do has called waited, a signal
// ends its context.
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
		return exitf(exitUsage, "--lease %v: at least %v in this store", s.taker.lease, least)
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

// explained returns the error of an acquisition with who has the lock, or what is there instead, if
// the store says that soon.
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
		return failed // which doesn't quote the script that met something else
	case conflict && failed == nil && (len(info.Holders) > 0 || info.Kind == backend.Permits):
		return fmt.Errorf("%w: %s: %s", dlock.ErrConflict, printable(s.name), stateOf(&info))
	case conflict, failed != nil, len(info.Holders) == 0:
		return err
	}
	return fmt.Errorf("%w: %s has it", err, printable(info.Holders[0].ID))
}

// interruptible lets the first signal interrupt, until the function that it returns has returned.
// That may be called again.
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

// interrupted returns which signal ended the wait, or err if none has.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// leaveNothing waits until the store knows nothing any more of a wait that came to nothing, but no
// longer than the store may take, and not if we are interrupted once more. The client gives back in
// the background what an attempt without an answer may have brought about, until it is closed.
func (s *holding) leaveNothing(c *dlock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), s.taker.timeout)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer s.interruptible(interrupt)()
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 100*time.Millisecond) {
		l, err := c.Inspect(ctx, s.name)
		switch {
		case errors.Is(err, errors.ErrUnsupported), backend.KindOf(err) == backend.Refused:
			return // we don't get to know
		case err == nil && !knows(&l, c.ID()):
			return
		}
		time.Sleep(pause)
	}
}

// knows says whether a client is among those who have a lock, or stand in line for it.
func knows(l *dlock.LockInfo, client string) bool {
	return slices.ContainsFunc(l.Holders, func(h dlock.Holder) bool { return h.Client == client }) ||
		slices.ContainsFunc(l.Line, func(id string) bool { return strings.HasPrefix(id, client+":") })
}

// renewed is told of each round of renewals.
func (s *holding) renewed(e dlock.RenewDone) {
	select {
	case s.renewals <- e:
	default: // one of those before does as well
	}
}

// tellRenewal tells of a round of renewals if it failed.
func (s *holding) tellRenewal(e dlock.RenewDone) {
	if e.Err != nil {
		s.tell("unrenewed", func(p *progress) { p.Error = e.Err.Error() })
	}
}

// lose notes, and tells, that the lock is lost.
func (s *holding) lose(err error) {
	s.lost = err
	s.tell("lost", func(p *progress) { p.Reason, p.Error = reasonOf(err), err.Error() })
}

// release gives the lock back. The error is that of the store, and tells why it isn't given back
// yet.
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

// finish tells of the error that ends everything where it is told in JSON, and returns what is left
// to print.
func (s *holding) finish(err error) error {
	if text := message(err); text != "" && s.taker.json {
		s.tell("failed", func(p *progress) { p.Error = text })
		return exit(statusOf(err), nil)
	}
	return err
}

// tell tells what happens, which fill, unless it is nil, says more of.
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
