//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/cmd/distsync/internal/child"
	"github.com/seed951563bd/distsync/dlock"
)

// Signals that end the wait for a lock, and those that are passed on besides while the command runs.
var (
	ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
	others = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}
)

// A running is one run of a command.
type running struct {
	*runner
	name     string
	path     string // of the command
	command  []string
	stderr   io.Writer
	signals  chan os.Signal
	renewals chan dlock.RenewDone

	hold    *dlock.Hold
	child   *child.Child
	started time.Time
	told    time.Time // until when the command may run, as the child was told last
	lost    error     // why the lock is lost, or about to be
	overdue bool      // the command has run for longer than it may
	asked   time.Time // when a TERM was passed on first, after which it has only so long
	killed  bool
}

func (r *runner) run(ctx context.Context, stderr io.Writer, name string, command []string) error {
	s := &running{runner: r, name: name, command: command, stderr: stderr,
		signals: make(chan os.Signal, 64), renewals: make(chan dlock.RenewDone, 16)}
	s.listen(ending)
	defer signal.Stop(s.signals)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // whoever reads our messages may go: that ends nothing
	err := s.run(ctx)
	if text := message(err); text != "" && r.json {
		s.tell("failed", func(p *progress) { p.Error = text })
		return exit(statusOf(err), nil)
	}
	return err
}

// explained returns the error of an acquisition with who has the lock, or what is there instead, if
// the store says that soon.
func (s *running) explained(c *dlock.Client, err error) error {
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

// lookUp returns where a command is.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exit(exitNotFound, err)
	default:
		return "", exit(exitCannotRun, err)
	}
}

// listen lets signals come to us, but for those that whoever started us wants ignored, as nohup(1) does.
func (s *running) listen(signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(s.signals, sig)
		}
	}
}

// run waits for the lock, and runs the command under it.
func (s *running) run(ctx context.Context) (err error) {
	if s.path, err = lookUp(s.command[0]); err != nil {
		return err
	}
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	waited := s.interruptible(interrupt)
	defer waited()
	store, err := s.connect(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer store.close()
	if least := store.Limits().MinLease; s.lease < least {
		return exitf(exitUsage, "--lease %v: at least %v in this store", s.lease, least)
	}
	c := dlock.New(store.Backend, dlock.WithLease(s.lease), dlock.WithLogger(slog.New(slog.DiscardHandler)),
		dlock.WithTrace(&dlock.Trace{RenewDone: s.renewed}))
	defer c.Close()
	s.tell("waiting", nil)
	began := time.Now()
	s.hold, err = s.acquire(ctx, c, s.name)
	if err != nil {
		waited()
		s.leaveNothing(c)
		return interrupted(ctx, s.refused(store, s.explained(c, err)))
	}
	s.tell("acquired", func(p *progress) {
		p.Holder, p.Waited = s.hold.HolderID(), secondsOf(time.Since(began))
		p.Token, _ = s.hold.Token()
	})
	s.settle(ctx)
	waited()
	if ctx.Err() != nil {
		s.release()
		return context.Cause(ctx)
	}
	if s.hold.Err() != nil {
		s.release()
		return s.verdict(0)
	}
	return s.underLock()
}

// settle waits until the lock lasts for long enough to begin, or is lost. What the store gives to the first in line of a fair lock lasts
// for a second or so, until it is renewed, which is soon; a command that began before that would be asked to end at once.
func (s *running) settle(ctx context.Context) {
	for time.Until(s.last()) <= s.grace {
		select {
		case e := <-s.renewals:
			s.tellRenewal(e)
		case <-s.hold.Lost():
			return
		case <-ctx.Done():
			return
		}
	}
}

// interruptible lets the first signal interrupt, until the function that it returns has returned. That may be called again.
func (s *running) interruptible(interrupt context.CancelCauseFunc) (end func()) {
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

// leaveNothing waits until the store knows nothing any more of a wait that came to nothing, but no longer than the store may take, and
// not if we are interrupted once more. The client gives back in the background what an attempt without an answer may have brought about,
// until it is closed.
func (s *running) leaveNothing(c *dlock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
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
func (s *running) renewed(e dlock.RenewDone) {
	select {
	case s.renewals <- e:
	default: // one of those before does as well
	}
}

// tellRenewal tells of a round of renewals if it failed.
func (s *running) tellRenewal(e dlock.RenewDone) {
	if e.Err != nil {
		s.tell("unrenewed", func(p *progress) { p.Error = e.Err.Error() })
	}
}

// underLock runs the command, gives the lock back, and returns with which status to exit.
func (s *running) underLock() error {
	s.listen(others)
	var err error
	s.started, s.told = time.Now(), s.last()
	if s.child, err = child.Start(s.path, s.command, s.environment(), s.told); err != nil {
		s.release()
		status := exitCannotRun
		if errors.Is(err, fs.ErrNotExist) {
			status = exitNotFound
		}
		return exitf(status, "%s: %w", s.path, err)
	}
	s.tell("started", func(p *progress) { p.PID = s.child.PID })
	s.follow()
	status := s.child.Status.Exit()
	s.tell("ended", func(p *progress) { p.Status = &status })
	if n := s.child.Status.Spared; n > 0 {
		s.tell("spared", func(p *progress) { p.Error = strconv.Itoa(n) })
	}
	s.release()
	return s.verdict(status)
}

// verdict returns with which status to exit when the command has ended with that.
func (s *running) verdict(status int) error {
	switch {
	case s.lost != nil && s.quiet:
		return exit(exitLost, nil)
	case s.lost != nil:
		return exit(exitLost, s.lost)
	case s.overdue:
		return exit(exitTimeout, nil)
	}
	return exit(status, nil)
}

// environment returns the command's.
func (s *running) environment() []string {
	ours := []string{"DISTSYNC_NAME", "DISTSYNC_HOLDER", "DISTSYNC_TOKEN"}
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(ours, name) // of a run that this one is in
	})
	env = append(env, "DISTSYNC_NAME="+s.name, "DISTSYNC_HOLDER="+s.hold.HolderID())
	if token, ok := s.hold.Token(); ok {
		env = append(env, "DISTSYNC_TOKEN="+strconv.FormatUint(token, 10))
	}
	return env
}

// follow returns when the command has ended. It ends it when it has to.
func (s *running) follow() {
	lost := s.hold.Lost()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.look())
		select {
		case <-s.child.Ended:
			return
		case sig := <-s.signals:
			s.look() // we may have been stopped, too
			s.child.Signal(sig.(syscall.Signal))
			if sig == syscall.SIGTERM && s.bounded && s.asked.IsZero() {
				s.asked = time.Now()
			}
		case e := <-s.renewals:
			s.tellRenewal(e)
		case <-lost:
			lost = nil
		case <-timer.C:
		}
	}
}

// never is when nothing is due any more.
const never = 1000 * time.Hour

// look does what is due, and returns how long nothing will be.
func (s *running) look() time.Duration {
	if s.killed {
		return never
	}
	now := time.Now()
	next := s.lookAtLock(now)
	if s.longest > 0 && !s.killed {
		next = min(next, s.lookAtTime(s.longest-now.Sub(s.started)))
	}
	if !s.asked.IsZero() && !s.killed {
		next = min(next, s.lookAtGrace(s.grace-now.Sub(s.asked)))
	}
	return next
}

// lookAtGrace kills the command when the time is over that it had after a TERM that was passed on:
// that is left.
func (s *running) lookAtGrace(left time.Duration) time.Duration {
	if left > 0 {
		return left
	}
	s.kill("grace")
	return never
}

// lookAtLock asks the command to end when the lock is in danger, and kills it before the lock could be another's.
func (s *running) lookAtLock(now time.Time) time.Duration {
	last := s.last()
	if !last.Equal(s.told) {
		s.told = last
		s.child.Until(last)
	}
	left := last.Sub(now)
	err := s.hold.Err()
	switch {
	case err != nil:
		s.kill(reasonOf(err))
		s.lose(err)
		return never
	case left <= 0:
		s.lost = errNotRenewed
		s.kill(reasonOf(errNotRenewed))
		return never
	case left > s.grace:
		return left - s.grace
	case s.lost == nil:
		s.lost = errNotRenewed
		s.terminate(reasonOf(errNotRenewed))
	}
	return left
}

// last returns when the command has to be dead.
func (s *running) last() time.Time { return s.hold.Until().Add(-s.margin()) }

// lookAtTime asks the command to end, and kills it, when it has run for as long as it may: that is left.
func (s *running) lookAtTime(left time.Duration) time.Duration {
	if left > 0 {
		return left
	}
	if !s.overdue {
		s.overdue = true
		s.terminate("timeout")
	}
	if left+s.grace > 0 {
		return left + s.grace
	}
	s.kill("timeout")
	return never
}

var errNotRenewed = errors.New("the command was ended, since the lock was about to be lost: it couldn't be renewed")

// lose notes, and tells, that the lock is lost.
func (s *running) lose(err error) {
	s.lost = err
	s.tell("lost", func(p *progress) { p.Reason, p.Error = reasonOf(err), err.Error() })
}

// terminate asks the command to end, also if it is stopped.
func (s *running) terminate(reason string) {
	s.child.Signal(syscall.SIGTERM)
	s.child.Signal(syscall.SIGCONT)
	s.tell("terminated", func(p *progress) { p.Reason = reason })
}

// kill kills the command.
func (s *running) kill(reason string) {
	s.killed = true
	s.child.Kill()
	s.tell("killed", func(p *progress) { p.Reason = reason })
}

// release gives the lock back.
func (s *running) release() {
	err := s.hold.Release(context.Background())
	switch _, known := errors.AsType[*dlock.Loss](s.lost); {
	case err == nil:
		s.tell("released", nil)
	case errors.Is(err, dlock.ErrLost) && !known:
		s.lose(err)
	case !errors.Is(err, dlock.ErrLost):
		s.tell("unreleased", func(p *progress) { p.Error = err.Error() })
	}
}

// tell tells what happens, which fill, unless it is nil, says more of.
func (s *running) tell(event string, fill func(*progress)) {
	p := &progress{Time: time.Now(), nameJSON: jsonName(s.name), Event: event}
	if fill != nil {
		fill(p)
	}
	switch text := p.text(s.name); {
	case s.json:
		_ = printJSON(s.stderr, p)
	case text != "" && !s.quiet:
		fmt.Fprintln(s.stderr, text)
	}
}
