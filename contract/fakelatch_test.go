package contract

import (
	"context"
	"math"

	"github.com/seed951563bd/distsync/backend"
)

// latchFaults are ways in which a store can be wrong about latches.
var latchFaults = []storeFault{
	{"latches are set while they count", "latch/count", false},
	{"one CountDown in fifty is lost", "latch/together", false},
	{"counts of latches have 32 bits", "latch/set meanwhile", false},
	{"latches free locks", "latch/locks", false},
	{"latches open silently", "latch/notifier", false},
	{"break is restored silently", "latch/broken subscription", false},
}

// Latch does a step in membackend, or what the fault makes of it.
func (s *fake) Latch(ctx context.Context, req backend.LatchRequest) (backend.LatchResult, error) {
	look := req
	look.Step = backend.LookAtLatch
	switch s.st.fault {
	case "latches are set while they count":
		if now, _ := s.in.Latch(ctx, look); req.Step == backend.SetLatch {
			down := backend.LatchRequest{Step: backend.CountDown, Name: req.Name}
			for n := min(now.Count, 10); n > 0; n-- { // not all of a large one
				s.in.Latch(ctx, down)
			}
		}
	case "one CountDown in fifty is lost":
		if req.Step == backend.CountDown && s.st.counted.Add(1)%50 == 0 {
			return s.in.Latch(ctx, look)
		}
	case "counts of latches have 32 bits":
		req.Count = min(req.Count, math.MaxInt32)
	case "latches free locks":
		s.in.ForceRelease(ctx, backend.ForceReleaseRequest{Name: req.Name})
	}
	return s.in.Latch(ctx, req)
}
