package contract

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A ledger counts the acquiring calls and the holds that a client's trace reports. Each hold must
// end exactly once.
type ledger struct {
	mu    sync.Mutex
	calls int // acquiring calls under way
	// The number of current holds, by name and holder. One hold in the store may correspond to
	// several holds of the client. If the end of a hold is reported before its beginning, the
	// number is negative for a moment.
	holds  map[string]int
	losses []*dlock.Loss
	wrong  []string
}

func newLedger() *ledger { return &ledger{holds: make(map[string]int)} }

// trace returns an option that makes the client report to the ledger.
func (x *ledger) trace() dlock.Option {
	return dlock.WithTrace(&dlock.Trace{
		AcquireStart: func(ctx context.Context, e dlock.AcquireStart) context.Context {
			x.note(func() { x.calls++ })
			return ctx
		},
		AcquireDone: func(_ context.Context, e dlock.AcquireDone) {
			x.note(func() {
				x.calls--
				acquired := e.Outcome == dlock.OutcomeAcquired
				if acquired != (e.Err == nil) || acquired != (e.HolderID != "") || e.Waited < 0 {
					x.wrong = append(x.wrong, fmt.Sprintf("told of an acquisition: %+v", e))
				}
				if acquired && e.Via != dlock.ViaReentry {
					x.count(e.Name, e.HolderID, +1)
				}
			})
		},
		ReleaseDone: func(_ context.Context, e dlock.ReleaseDone) {
			x.note(func() {
				switch e.Outcome {
				case dlock.UnlockReleased, dlock.UnlockHandedOn, dlock.UnlockFailed,
					dlock.UnlockForsaken:
					x.count(e.Name, e.HolderID, -1)
				}
				if e.Held < 0 || e.Took < 0 {
					x.wrong = append(x.wrong, fmt.Sprintf("told of a release: %+v", e))
				}
			})
		},
		Lost: func(l *dlock.Loss) {
			x.note(func() {
				x.losses = append(x.losses, l)
				x.count(l.Name, l.Holder, -1)
				if l.Held < 0 || l.Unconfirmed < 0 || l.Paused < 0 || l.At.IsZero() ||
					l.Reason == dlock.LossTaken && l.TakenBy == "" {
					x.wrong = append(x.wrong, fmt.Sprintf("told of a loss: %+v", *l))
				}
			})
		},
	})
}

func (x *ledger) note(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// count adds n to the number of holds of a name and a holder. The caller must hold x.mu.
func (x *ledger) count(name, holder string, n int) {
	hold := name + " by " + holder
	if x.holds[hold] += n; x.holds[hold] == 0 {
		delete(x.holds, hold)
	}
}

// lossesOf returns the losses of a lock that the trace reported.
func (x *ledger) lossesOf(name string) (losses []*dlock.Loss) {
	x.note(func() {
		for _, l := range x.losses {
			if l.Name == name {
				losses = append(losses, l)
			}
		}
	})
	return losses
}

// settled returns a description of each error in the counts. It is called after the client was
// closed, when all calls and holds must have ended.
func (x *ledger) settled() (wrong []string) {
	x.note(func() {
		wrong = append(wrong, x.wrong...)
		if x.calls != 0 || len(x.holds) > 0 {
			wrong = append(wrong, fmt.Sprintf("told of %d calls that began and didn't end, and "+
				"that holds began so much more often than they ended: %v", x.calls, x.holds))
		}
	})
	return wrong
}

// settles waits until the counts are right, for at most 30 s, and returns the errors that remain.
// It waits because calls may return a moment after Close.
func (x *ledger) settles() (wrong []string) {
	for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		if wrong = x.settled(); len(wrong) == 0 {
			break
		}
	}
	return wrong
}
