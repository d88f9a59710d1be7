package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// TestFairAmongClients: one at a time, and all have their turns, whichever members die and whoever
// gives up.
func TestFairAmongClients(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	var inside atomic.Int32
	var turns [4]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range turns {
		c := dlock.New(etcdbackend.New(
			connectAll(t, append(addrs(members)[i%3:], addrs(members)[:i%3]...))),
			dlock.WithLease(4*time.Second))
		t.Cleanup(func() { c.Close() })
		for j := range 4 {
			wait := time.Hour
			if j == 1 {
				wait = 5 * time.Millisecond
			}
			all.Go(func() {
				for ctx.Err() == nil {
					err := c.FairLocker("n").Do(ctx, func(context.Context) error {
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d are inside", n)
						}
						turns[i].Add(1)
						inside.Add(-1)
						return nil
					}, dlock.Wait(wait))
					if err != nil && ctx.Err() == nil && !errors.Is(err, dlock.ErrNotAcquired) &&
						!errors.Is(err, dlock.ErrLost) {
						t.Logf("client %d: %v", i, err)
					}
				}
			})
		}
	}
	goesOn := func(what string) {
		t.Helper()
		var before [len(turns)]int64
		for i := range turns {
			before[i] = turns[i].Load()
		}
		begin := time.Now()
		for i := range turns {
			testservers.Until(t, fmt.Sprintf("client %d has its turns %s", i, what), func() bool {
				return turns[i].Load() > before[i]+1
			})
		}
		t.Logf("%s: %v", what, time.Since(begin))
	}
	goesOn("at first")
	members[0].Kill()
	goesOn("after the death of a member")
	stop()
	all.Wait()
	for i := range turns {
		t.Logf("client %d: %d turns", i, turns[i].Load())
	}
}
