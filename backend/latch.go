package backend

import "context"

// Latcher is an optional interface of a [Session] whose store has count-down latches. A latch has a
// name and a count. A latch without a count is open. The count has no lease: it stays until it is
// zero.
//
// If the session is a [Notifier], waiters subscribe with the kind [Latch]. They are woken when the
// latch opens. Apart from that, the rules for locks apply.
type Latcher interface {
	// Latch carries out one atomic step, like those of a Session. If the name belongs to something
	// other than a latch, and the store can tell, Latch fails with [ErrConflict] and changes
	// nothing.
	Latch(ctx context.Context, req LatchRequest) (LatchResult, error)
}

// LatchRequest is a request for a step of a latch.
type LatchRequest struct {
	Step  LatchStep
	Name  string
	Count int64 // for SetLatch: positive
}

// LatchStep is a step of a latch.
type LatchStep uint8

// The steps of a latch.
const (
	// LookAtLatch changes nothing.
	LookAtLatch LatchStep = iota

	// SetLatch sets the count of a latch that has none. It changes nothing if the latch already has
	// one.
	SetLatch

	// CountDown decrements the count, and wakes the waiters if it reaches zero. It changes nothing
	// if the latch is open.
	CountDown
)

// LatchResult is the answer to a [LatchRequest].
type LatchResult struct {
	Count int64 // count after the step; 0 if the latch is open
	Set   bool  // SetLatch has set the count
}
