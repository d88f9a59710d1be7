//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/cmd/distsync/internal/child"
)

// Signals that end the wait for a lock, and those that are passed on besides while the command
// runs.
var (
	ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2}
	others = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}
)

// A running is one run of a command.
type running struct {
	*runner
	*holding
	path    string // of the command
	command []string

	child   *child.Child
	started time.Time
	told    time.Time // until when the command may run, as the child was told last
	overdue bool      // the command has run for longer than it may
	asked   time.Time // when a TERM was passed on first, after which it has only so long
	killed  bool
}

func (r *runner) run(ctx context.Context, stderr io.Writer, name string, command []string) error {
	h, end := newHolding(&r.taker, name, stderr)
	defer end()
	s := &running{runner: r, holding: h, command: command}
	return s.finish(s.run(ctx))
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

// run waits for the lock, and runs the command under it.
func (s *running) run(ctx context.Context) (err error) {
	if s.path, err = lookUp(s.command[0]); err != nil {
		return err
	}
	return s.under(ctx, func(ctx context.Context, waited func()) error {
		s.settle(ctx)
		waited()
		if ctx.Err() != nil {
			s.giveBack()
			return context.Cause(ctx)
		}
		if s.hold.Err() != nil {
			s.giveBack()
			return s.verdict(nil)
		}
		return s.underLock()
	})
}

// giveBack gives the lock back. If the store doesn't take it, the lock ends with its lease.
func (s *running) giveBack() { _ = s.release(context.Background()) }

// settle waits until the lock lasts for long enough to begin, or is lost. What the store gives to
// the first in line of a fair lock lasts for a second or so, until it is renewed, which is soon; a
// command that began before that would be asked to end at once.
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

// underLock runs the command, gives the lock back, and returns with which status to exit.
func (s *running) underLock() error {
	s.listen(others)
	var err error
	s.started, s.told = time.Now(), s.last()
	if s.child, err = child.Start(s.path, s.command, s.environment(), s.told); err != nil {
		s.giveBack()
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
	s.giveBack()
	if s.overdue {
		status = exitTimeout
	}
	return s.verdict(exit(status, nil))
}

// verdict returns with which status to exit if the lock was lost, and else err.
func (s *running) verdict(err error) error {
	switch {
	case s.lost != nil && s.quiet:
		return exit(exitLost, nil)
	case s.lost != nil:
		return exit(exitLost, s.lost)
	}
	return err
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

// lookAtLock asks the command to end when the lock is in danger, and kills it before the lock could
// be another's.
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

// lookAtTime asks the command to end, and kills it, when it has run for as long as it may: that is
// left.
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

var errNotRenewed = errors.New("the command was ended, since the lock was about to be lost: " +
	"it couldn't be renewed")

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
