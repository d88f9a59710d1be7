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

// Fail makes the next n steps fail with err, without being carried out. Steps of all clients of the
// store are counted together. With n less than 0 all steps fail until [Store.Recover].
//
// A step is one request of a client: to acquire, release, renew, force-release or look at a lock,
// to say who has it or which locks there are, or to keep places in line. Renewals, repeated
// attempts and releases in the background count, too. Wake-ups are no steps, and go on.
//
// Fail and Hang add up: a call affects the steps that follow those of the call before.
//
// An err that is, or wraps, a [backend.Error] is of its kind. Any other is of kind [backend.Retry]:
// the step was not carried out, and the next may be. With a nil err the steps fail with an error
// that says that the store is down.
func (s *Store) Fail(n int, err error) {
	if err == nil {
		err = errFailed
	}
	if _, ok := errors.AsType[*backend.Error](err); !ok {
		err = &backend.Error{Kind: backend.Retry, Err: err}
	}
	s.add(fault{n, err})
}

// Hang makes the next n steps hang, counted like those of [Store.Fail]; with n less than 0 all.
// They are carried out at [Store.Recover], or never if their context has ended by then, also
// because the client was closed. A client can't know whether such a step was carried out.
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

// Recover ends the faults of Fail and Hang: steps that hang are carried out now, and later steps
// work.
func (s *Store) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
	if s.hanging != nil {
		close(s.hanging)
		s.hanging = nil
	}
}

// PauseRenewals makes renewals hang, and nothing else, until [Store.ResumeRenewals]. So each lock
// ends with its lease. Its holder is told then, with reason LossExpired, and the next gets in. A
// holder that is cut off sees the same. These renewals are not among the steps that [Store.Fail]
// and [Store.Hang] count.
func (s *Store) PauseRenewals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == nil {
		s.paused = make(chan struct{})
	}
}

// ResumeRenewals ends the fault of PauseRenewals: renewals that hang are carried out now, unless
// their clients have given them up.
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
