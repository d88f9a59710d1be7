package shards

import "time"

// Trace has functions that are called as things happen to a member. Each may be nil. The goroutines
// that do the work call them, so they must return soon.
type Trace struct {
	// Start is called as a run begins.
	Start func(RunStart)

	// Overdue is called when a run hasn't returned in its grace. It tells of the run so far; End
	// follows.
	Overdue func(RunEnd)

	// End is called when a run has returned, before the shard is given back.
	End func(RunEnd)

	// Change is called when the members, or what they want, have changed. When Run returns it is
	// called with no members.
	Change func(Change)
}

// RunStart is the beginning of a run.
type RunStart struct {
	Set, Shard string
	Token      uint64
	Waited     time.Duration // since the member wanted the shard
}

// RunEnd is the end of a run, or of its grace.
type RunEnd struct {
	Set, Shard string
	Token      uint64
	Ran        time.Duration
	Finished   time.Duration // since it was told to return; 0 if it wasn't
	Overdue    bool
	Cause      error // why it was told to return, as [context.Cause] of its context; nil if it wasn't
	Err        error // what it returned
}

// Change is what a member sees of all members.
type Change struct {
	Set     string
	Members int
	Seats   int
	Mine    int  // shards that it wants
	Lists   int  // how many different lists members have; more than 1: they disagree
	Free    int  // shards for which no member has room
	Frozen  bool // a writer holds the members' lock, so that nothing can change
}
