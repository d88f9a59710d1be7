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

// A holding waits for a lock, holds it and reports events. The commands "run" and "hold" use it.
type holding struct {
	taker    *taker
	name     string
	out      io.Writer // where events are printed
	alone    bool      // no command runs, so routine events are printed, too
	signals  chan os.Signal
	renewals chan dlock.RenewDone

	hold *dlock.Hold
	lost error // the reason why the lock is lost, or about to be lost
}

// newHolding returns a holding that catches the signals that end a wait. It catches them until the
// program exits, so that a late signal doesn't change the exit status.
func newHolding(k *taker, name string, out io.Writer) *holding {
	s := &holding{taker: k, name: name, out: out,
		signals: make(chan os.Signal, 64), renewals: make(chan dlock.RenewDone, 16)}
	s.listen(ending)
	// Catch SIGPIPE, so that the program doesn't die if the reader of its output exits.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return s
}

// listen catches the signals, except those that the parent process set to be ignored, as nohup(1)
// does.
func (s *holding) listen(signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(s.signals, sig)
		}
	}
}

// under waits for the lock, and calls the given function while the lock is held. A signal cancels
// the function's context, unless the function has already called waited.
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

// explained adds a reason to the error of an acquisition: who holds the lock, or that its name
// belongs to other data. It returns err unchanged if the store doesn't answer within a second.
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
		return failed // this error, unlike err, doesn't quote an error from a script
	case conflict && failed == nil && (len(info.Holders) > 0 || info.Kind == backend.Permits):
		return fmt.Errorf("%w: %s: %s", dlock.ErrConflict, printable(s.name), stateOf(&info))
	case conflict, failed != nil, len(info.Holders) == 0:
		return err
	}
	return fmt.Errorf("%w: %s has it", err, printable(info.Holders[0].ID))
}

// interruptible calls interrupt, which cancels a context, when the first signal arrives. The
// returned function stops this. It can be called more than once.
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

// interrupted returns err, or the cause of ctx's cancellation if ctx was canceled, for example by a
// signal.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// leaveNothing waits until nothing of a failed acquisition is left in the store: no lock of this
// client, and no place in line. An unanswered attempt may have succeeded after all, and the client
// cleans up in the background until it is closed. leaveNothing gives up after the store timeout or
// at another signal.
func (s *holding) leaveNothing(c *dlock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), s.taker.timeout)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer s.interruptible(interrupt)()
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 100*time.Millisecond) {
		l, err := c.Inspect(ctx, s.name)
		switch {
		case errors.Is(err, errors.ErrUnsupported), backend.KindOf(err) == backend.Refused:
			return // this user isn't allowed to inspect locks
		case err == nil && !knows(&l, c.ID()):
			return
		}
		time.Sleep(pause)
	}
}

// knows reports whether l lists the client as a holder or as a waiter in line.
func knows(l *dlock.LockInfo, client string) bool {
	return slices.ContainsFunc(l.Holders, func(h dlock.Holder) bool {
		return h.Client == client
	}) ||
		slices.ContainsFunc(l.Line, func(id string) bool {
			return strings.HasPrefix(id, client+":")
		})
}

// renewed passes the result of a round of renewals to s.renewals. It doesn't block.
func (s *holding) renewed(e dlock.RenewDone) {
	select {
	case s.renewals <- e:
	default: // the channel is full, and the earlier events are enough
	}
}

// tellRenewal reports a failed round of renewals.
func (s *holding) tellRenewal(e dlock.RenewDone) {
	if e.Err != nil {
		s.tell("unrenewed", func(p *progress) { p.Error = e.Err.Error() })
	}
}

// lose records the loss of the lock and reports it as an event.
func (s *holding) lose(err error) {
	s.lost = err
	s.tell("lost", func(p *progress) { p.Reason, p.Error = reasonOf(err), err.Error() })
}

// release releases the lock. It returns an error only if the store hasn't confirmed the release. A
// lost lock isn't an error here, since s.lost records it.
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

// finish returns err for the program to print. If the output is JSON, finish reports err as an
// event instead, and returns an error that carries only the exit status.
func (s *holding) finish(err error) error {
	if text := message(err); text != "" && s.taker.json {
		s.tell("failed", func(p *progress) { p.Error = text })
		return exit(statusOf(err), nil)
	}
	return err
}

// tell reports an event. The function fill adds details, unless it is nil.
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
