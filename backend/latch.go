package backend

import "context"

// Latcher is an optional interface of a [Session] whose store has count-down latches. A latch has a
// name of its own and a count. Without a count it is open. It has no lease: a count stays until it
// is zero.
//
// Waiters subscribe with the kind [Latch] if the session is a [Notifier], and are woken when the
// latch opens. The rest is as for a lock.
type Latcher interface {
	// Latch does a step, which is atomic like those of a Session. If the name holds something that
	// is no latch, and the store can tell, the answer is [ErrConflict], and nothing changes.
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

	// SetLatch gives a count to a latch without one. It changes nothing if there is one.
	SetLatch

	// CountDown takes one from the count, and wakes the waiters if none is left. It changes nothing
	// if the latch is open.
	CountDown
)

// LatchResult is the answer to a [LatchRequest].
type LatchResult struct {
	Count int64 // after the step; 0: the latch is open
	Set   bool  // SetLatch has set the count
}
