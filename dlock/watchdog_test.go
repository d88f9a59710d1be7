package dlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

// A renewal that was answered isn't carried out any more. So when the lease becomes longer, no late
// one can make it short again, and the lock can be handed on.
func TestAnAnsweredRenewalIsNoReasonForDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), WithLease(3*time.Second), quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		time.Sleep(10 * time.Second)
		c.mu.Lock()
		cl := heldOf(c, "x").claim
		cl.Lengthens(time.Minute)
		if !cl.passes(c.now()) {
			t.Error("a longer lease is in doubt after renewals that were all answered")
		}
		c.mu.Unlock()
		must(t, h.Release(t.Context()))
	})
}
