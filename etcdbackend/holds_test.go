package etcdbackend

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLeasesAreTakenOnce(t *testing.T) {
	h := newHolds()
	id := holdID{name: "n", owner: "a"}
	ctx, cancel := context.WithCancel(t.Context())
	if !h.use(ctx, id, lease{id: 1, ttl: 30}) || !h.use(t.Context(), id, lease{id: 2, ttl: 30}) {
		t.Fatal("a live step may not go on")
	}
	h.keepLeases(id, []int64{3}, 30)
	cancel() // the first step was given up, and its request may come late
	if h.use(ctx, id, lease{id: 4, ttl: 30}) {
		t.Error("a step goes on after its end: nobody would revoke its lease")
	}
	if got := h.take(id, 3); !slices.Equal(got, []int64{1, 3}) {
		t.Errorf("took %v, want 1, which was given up, and 3 once", got)
	}
	h.suspect(id, 2)
	if got := h.take(id, 0); !slices.Equal(got, []int64{2}) || h.len() != 0 {
		t.Errorf("took %v, want 2, whose step is over; %d holds are left", got, h.len())
	}
}

func TestForgottenHoldsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolds()
		kept := holdID{name: "kept", owner: "a"}
		h.wrote(kept, record{rev: 1}, lease{ttl: 30})
		for i := range 10_000 {
			h.keepLeases(holdID{name: "n", owner: fmt.Sprint(i)}, []int64{int64(i)}, 30)
			time.Sleep(time.Second) // virtual
			h.renewed(kept, 0, 30, time.Now())
		}
		// An entry is kept for 70 s after its lease began, and as many again may wait to be
		// dropped.
		if n := h.len(); n > 3*firstSweep {
			t.Errorf("%d holds are remembered", n)
		}
		if h.guess(kept).rev != 1 {
			t.Error("a hold that is renewed was dropped")
		}
	})
}
