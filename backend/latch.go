package backend

import "context"

// Latcher is an optional interface of a [Session] whose store has count-down latches. A latch is
// identified by a name. It is closed while it has a count, and open otherwise. A count has no
// lease, so it remains until it reaches zero.
//
// If the session is also a [Notifier], waiters subscribe with the kind [Latch], and are woken when
// the latch opens. In all other respects, the rules for locks apply to latches as well.
type Latcher interface {
	// Latch carries out one atomic step of a latch, under the same rules as the steps of a Session.
	// If the name belongs to something other than a latch, and the store can tell, Latch fails with
	// [ErrConflict] and changes nothing.
	Latch(ctx context.Context, req LatchRequest) (LatchResult, error)
}

// LatchRequest is a request for a step of a latch.
type LatchRequest struct {
	Step LatchStep
	Name string
	// Count is the new count for SetLatch. It is positive.
	Count int64
}

// LatchStep is a step of a latch.
type LatchStep uint8

// The steps of a latch.
const (
	// LookAtLatch changes nothing.
	LookAtLatch LatchStep = iota

	// SetLatch sets the count of a latch that has none. Otherwise it changes nothing.
	SetLatch

	// CountDown decrements the count, and wakes the waiters if the count reaches zero. If the latch
	// is open, it changes nothing.
	CountDown
)

// LatchResult is the answer to a [LatchRequest].
type LatchResult struct {
	// Count is the count after the step, or 0 if the latch is open.
	Count int64
	// Set reports whether SetLatch has set the count.
	Set bool
}
