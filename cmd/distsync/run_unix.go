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

// These are the signals that distsync handles. Signals in the first list interrupt a wait for a
// lock. While the command runs, signals in both lists are forwarded to it.
var (
	ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2}
	others = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}
)

// running is the state of a command that runs while a lock is held.
type running struct {
	*runner
	*holding
	path    string // of the command's file
	command []string

	child   *child.Child
	started time.Time
	told    time.Time // the last deadline that the child was given
	overdue bool      // the command has run longer than --timeout
	asked   time.Time // when the first TERM was forwarded, if --grace is set
	killed  bool
}

func (r *runner) run(ctx context.Context, stderr io.Writer, name string, command []string) error {
	s := &running{runner: r, holding: newHolding(&r.taker, name, stderr), command: command}
	return s.finish(s.run(ctx))
}

// lookUp returns the path of a command's executable.
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

// run waits for the lock and runs the command while it is held.
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

// giveBack releases the lock. If the store doesn't answer, the lock ends when its lease expires.
func (s *running) giveBack() { _ = s.release(context.Background()) }

// settle waits until the lock lasts long enough for the command to start, or is lost. When a fair
// lock is given to the first waiter in line, the store at first grants it for only about a second.
// The client renews it soon after. A command that started before that renewal would get TERM at
// once.
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

// underLock runs the command, releases the lock, and returns the exit status.
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

// verdict returns err, or an error with the status exitLost if the lock was lost.
func (s *running) verdict(err error) error {
	switch {
	case s.lost != nil && s.quiet:
		return exit(exitLost, nil)
	case s.lost != nil:
		return exit(exitLost, s.lost)
	}
	return err
}

// environment returns the command's environment.
func (s *running) environment() []string {
	ours := []string{"DISTSYNC_NAME", "DISTSYNC_HOLDER", "DISTSYNC_TOKEN"}
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(ours, name) // inherited if run is nested
	})
	env = append(env, "DISTSYNC_NAME="+s.name, "DISTSYNC_HOLDER="+s.hold.HolderID())
	if token, ok := s.hold.Token(); ok {
		env = append(env, "DISTSYNC_TOKEN="+strconv.FormatUint(token, 10))
	}
	return env
}

// follow waits for the command to end. Meanwhile it forwards signals, and ends the command when the
// lock is about to be lost, or a time limit is reached.
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
			s.look() // this process may have been stopped meanwhile
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

// never is the result of look if there is no next action.
const never = 1000 * time.Hour

// look carries out due actions and returns the time until the next one.
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

// lookAtGrace kills the command when the grace time after a forwarded TERM has passed. It returns
// the time left until then.
func (s *running) lookAtGrace(left time.Duration) time.Duration {
	if left > 0 {
		return left
	}
	s.kill("grace")
	return never
}

// lookAtLock asks the command to end when the lock is about to be lost, and kills it before another
// client can get the lock. It returns the time until the next of these steps.
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

// last returns the time by which the command must be dead.
func (s *running) last() time.Time { return s.hold.Until().Add(-s.margin()) }

// lookAtTime asks the command to end after --timeout, and kills it after the grace time. It returns
// the time until the next of these steps.
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

var errNotRenewed = errors.New("the command was ended because the lock was about to be lost: " +
	"it couldn't be renewed")

// terminate asks the command to end. A stopped command is continued so that it can end.
func (s *running) terminate(reason string) {
	s.child.Signal(syscall.SIGTERM)
	s.child.Signal(syscall.SIGCONT)
	s.tell("terminated", func(p *progress) { p.Reason = reason })
}

// kill kills the command and all its processes.
func (s *running) kill(reason string) {
	s.killed = true
	s.child.Kill()
	s.tell("killed", func(p *progress) { p.Reason = reason })
}
