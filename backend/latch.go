package backend

import "context"

// Latcher is an optional interface of a [Session] whose store has count-down latches. A latch has a
// name, which is no lock's, and a count; one without a count is open. There is no lease: a count
// stays until it is zero.
//
// Those who wait for a latch subscribe with the kind [Latch] where the session is a [Notifier], and
// are woken when it opens; the rest is as for a lock.
type Latcher interface {
	// Latch does a step, which is atomic as those of a Session are. A name that holds something that
	// is no latch, where the store can tell, is answered with [ErrConflict], and left as it is.
	Latch(ctx context.Context, req LatchRequest) (LatchResult, error)
}

// LatchRequest asks for a step of a latch.
type LatchRequest struct {
	Step  LatchStep
	Name  string
	Count int64 // of SetLatch: positive
}

// LatchStep is a step of a latch.
type LatchStep uint8

// The steps of a latch.
const (
	// LookAtLatch changes nothing.
	LookAtLatch LatchStep = iota

	// SetLatch gives a latch without a count one, and changes nothing where there is one.
	SetLatch

	// CountDown takes one from the count, and wakes those who wait if none is left. It changes nothing
	// if the latch is open.
	CountDown
)

// LatchResult is the answer to a [LatchRequest].
type LatchResult struct {
	Count int64 // after the step; 0: the latch is open
	Set   bool  // SetLatch has set the count
}
