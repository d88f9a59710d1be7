package dlocktest

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
)

// A fault makes some steps fail or hang.
type fault struct {
	steps int   // the number of steps left; negative: all
	err   error // nil: the steps hang
}

// errFailed is the default error of steps that fail.
var errFailed = errors.New("dlocktest: the store is down")

// Fail makes the next n steps fail with err. They aren't carried out. The steps of all clients of
// the store are counted together. If n is negative, all steps fail until [Store.Recover].
//
// A step is one request of a client: to acquire, release, renew, force-release or look at a lock,
// to inspect or list locks, or to keep places in line. Renewals, repeated attempts and releases in
// the background also count. A message that wakes a waiter isn't a step, and is delivered despite
// faults.
//
// Calls of Fail and Hang take effect one after the other. For example, after Fail(2, err) and
// Hang(1), the next two steps fail, and the third hangs.
//
// If err is or wraps a [backend.Error], it keeps its kind. Any other err gets the kind
// [backend.Retry]: the step was not carried out, and another attempt may succeed. If err is nil,
// the error says that the store is down.
func (s *Store) Fail(n int, err error) {
	if err == nil {
		err = errFailed
	}
	if _, ok := errors.AsType[*backend.Error](err); !ok {
		err = &backend.Error{Kind: backend.Retry, Err: err}
	}
	s.add(fault{n, err})
}

// Hang makes the next n steps hang, or all steps if n is negative. It counts steps as [Store.Fail]
// does. Hanging steps are carried out when [Store.Recover] is called. A step is never carried out
// if its context has ended by then, for example because its client was closed. But the client can't
// know that.
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

// Recover ends the faults of Fail and Hang. Hanging steps are carried out now, and later steps
// succeed.
func (s *Store) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
	if s.hanging != nil {
		close(s.hanging)
		s.hanging = nil
	}
}

// PauseRenewals makes all renewals, but no other steps, hang until [Store.ResumeRenewals]. So a
// lock is lost when its lease expires. Its holder is notified, with the reason LossExpired, and the
// next waiter gets the lock. The same happens to a holder that is cut off from its store.
// [Store.Fail] and [Store.Hang] don't count these renewals.
func (s *Store) PauseRenewals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == nil {
		s.paused = make(chan struct{})
	}
}

// ResumeRenewals undoes PauseRenewals. Hanging renewals are carried out now, unless their clients
// have stopped waiting for them.
func (s *Store) ResumeRenewals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused != nil {
		close(s.paused)
		s.paused = nil
	}
}

// undergo applies the fault of a step, if it has one. If it returns an error, the step must not be
// carried out.
func (s *Store) undergo(ctx context.Context, renews bool) error {
	if ctx.Err() != nil {
		return nil // memory returns the error
	}
	goesOn, err := s.next(renews)
	if err != nil || goesOn == nil {
		return err
	}
	select {
	case <-goesOn:
		return nil
	case <-ctx.Done():
		return &backend.Error{
			Kind: backend.Unknown, Err: fmt.Errorf("dlocktest: the store hangs: %w", ctx.Err()),
		}
	}
}

// next returns the fault of the next step: an error, or a channel that is closed when the step may
// continue.
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
