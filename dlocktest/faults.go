package dlocktest

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
)

// A fault is what happens to some steps instead of what they are for.
type fault struct {
	steps int   // how many are left; negative: all
	err   error // nil: they hang
}

// errFailed is what steps fail with if a test doesn't say.
var errFailed = errors.New("dlocktest: the store is down")

// Fail makes the next n steps fail with err, without being carried out: those of all clients of the store, counted together. With n less than 0 all of them
// fail until [Store.Recover].
//
// A step is what a client asks the store once: to acquire, release, renew, force-release or look at a lock, to say who has it or
// which locks there are, or to keep places in line. What a client does by itself counts, too: renewals, attempts that are repeated, and
// locks that are given back in the background. To be woken when a lock is released is no step, and goes on.
//
// Fail and Hang add up: the steps after the next n are those of the next call.
//
// An err that is, or wraps, a [backend.Error] is of its kind, any other of kind [backend.Retry]: the step was not carried out, and the next may be. With a nil err
// they fail with one that says that the store is down.
func (s *Store) Fail(n int, err error) {
	if err == nil {
		err = errFailed
	}
	if _, ok := errors.AsType[*backend.Error](err); !ok {
		err = &backend.Error{Kind: backend.Retry, Err: err}
	}
	s.add(fault{n, err})
}

// Hang makes the next n steps hang, counted as those of [Store.Fail], and with n less than 0 all. They are not carried out before [Store.Recover], and
// never if their context has ended by then, also because the client was closed. Of such a step a client can't know whether it was carried out.
func (s *Store) Hang(n int) { s.add(fault{n, nil}) }

func (s *Store) add(f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.steps == 0 {
		return
	}
	s.faults = append(s.faults, f)
	if s.hanging == nil {
		s.hanging = make(chan struct{})
	}
}

// Recover ends what Fail and Hang have begun: steps that hang are carried out now, and none that follows fails or hangs.
func (s *Store) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
	if s.hanging != nil {
		close(s.hanging)
		s.hanging = nil
	}
}

// PauseRenewals makes renewals hang, and nothing else, until [Store.ResumeRenewals]: so each lock ends with its lease, its holder is told then, with reason
// LossExpired, and the next gets in. That is what a holder that is cut off, and each that stands still, sees. Renewals that hang are not
// among the steps that [Store.Fail] and [Store.Hang] count.
func (s *Store) PauseRenewals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == nil {
		s.paused = make(chan struct{})
	}
}

// ResumeRenewals ends what PauseRenewals has begun: those that hang, and whose clients have not given them up, are carried out now, late as they are.
func (s *Store) ResumeRenewals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused != nil {
		close(s.paused)
		s.paused = nil
	}
}

// undergo lets a step undergo its fault, if it has one. After an error it is not carried out.
func (s *Store) undergo(ctx context.Context, renews bool) error {
	if ctx.Err() != nil {
		return nil // nothing is sent, and memory says so
	}
	goesOn, err := s.next(renews)
	if err != nil || goesOn == nil {
		return err
	}
	select {
	case <-goesOn:
		return nil
	case <-ctx.Done():
		return &backend.Error{Kind: backend.Unknown, Err: fmt.Errorf("dlocktest: the store hangs: %w", ctx.Err())}
	}
}

// next returns the fault of the next step: an error, or that it hangs until something is closed.
func (s *Store) next(renews bool) (goesOn <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if renews && s.paused != nil {
		return s.paused, nil
	}
	if len(s.faults) == 0 {
		return nil, nil
	}
	f := &s.faults[0]
	if err = f.err; err == nil {
		goesOn = s.hanging
	}
	if f.steps--; f.steps == 0 {
		s.faults = s.faults[1:]
	}
	return goesOn, err
}
