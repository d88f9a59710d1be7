package shards

import "time"

// Trace is a set of functions that are called when certain events happen to a member. Each may be
// nil. They are called in the goroutines that do the work, so they must return soon.
type Trace struct {
	// Start is called when a run begins.
	Start func(RunStart)

	// Overdue is called when a run hasn't returned within its grace period. Its argument describes
	// the run so far. End is still called when the run returns.
	Overdue func(RunEnd)

	// End is called when a run has returned, before the shard is released.
	End func(RunEnd)

	// Change is called when the members, or what they publish about themselves, have changed. When
	// Run returns, it is called with no members.
	Change func(Change)
}

// RunStart describes a run that begins.
type RunStart struct {
	Set, Shard string
	Token      uint64
	Waited     time.Duration // the time since the member first wanted the shard, or last ran it
}

// RunEnd describes a run that has ended, or whose grace period is over.
type RunEnd struct {
	Set, Shard string
	Token      uint64
	Ran        time.Duration
	Finished   time.Duration // the time since the run was told to return; 0 if it wasn't
	Overdue    bool
	// Cause says why the run was told to return. It is the [context.Cause] of the run's context, or
	// nil if the run wasn't told to return.
	Cause error
	Err   error // the error that the run returned
}

// Change describes the members, as this member sees them after a change.
type Change struct {
	Set     string
	Members int
	Seats   int
	Mine    int  // the number of shards that this member wants
	Lists   int  // the number of different lists; above 1 if members disagree
	Free    int  // the number of shards for which no member has room
	Frozen  bool // whether a writer holds the members' lock, so that nothing can change
}
