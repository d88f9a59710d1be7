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

// TestPermitsAmongClients: never more inside than there are, whichever members die, and all come
// back.
func TestPermitsAmongClients(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	const limit = 6
	var inside, most atomic.Int32
	var turns [4]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var last *dlock.Semaphore
	for i := range turns {
		c := dlock.New(etcdbackend.New(
			connectAll(t, append(addrs(members)[i%3:], addrs(members)[:i%3]...))),
			dlock.WithLease(10*time.Second))
		t.Cleanup(func() { c.Close() })
		last = c.Semaphore("n", limit)
		for j := range 4 {
			all.Go(func() {
				n, wait := 1+j, time.Hour
				if j == 1 {
					wait = 5 * time.Millisecond
				}
				for ctx.Err() == nil {
					err := c.Semaphore("n", limit).Do(ctx, n, func(context.Context) error {
						now := inside.Add(int32(n))
						for was := most.Load(); now > was &&
							!most.CompareAndSwap(was, now); was = most.Load() {
						}
						turns[i].Add(1)
						time.Sleep(time.Millisecond)
						inside.Add(int32(-n))
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
		for i := range turns {
			testservers.Until(t, fmt.Sprintf("client %d has its turns %s", i, what), func() bool {
				return turns[i].Load() > before[i]+10
			})
		}
	}
	goesOn("at first")
	members[0].Kill()
	goesOn("after the death of a member")
	stop()
	all.Wait()
	if n := most.Load(); n > limit {
		t.Errorf("%d permits were out", n)
	}
	testservers.Until(t, "all have come back", func() bool {
		n, err := last.Available(t.Context())
		return err == nil && n == limit
	})
	for i := range turns {
		t.Logf("client %d: %d turns", i, turns[i].Load())
	}
}
