package dlock

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/membackend"
)

// Each hold and each wait names the line that asked for it, and none does without the option.
func TestCallers(t *testing.T) {
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testCallers(t, asked) })
		})
	}
}

func testCallers(t *testing.T, asked bool) {
	opts := []Option{quiet()}
	if asked {
		opts = append(opts, WithCallers())
	}
	c := New(membackend.New(), opts...)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()

	// after is the line so many lines after the one that calls it.
	after := func(n int) string {
		if !asked {
			return ""
		}
		_, file, line, _ := runtime.Caller(1)
		return fmt.Sprintf("%s:%d", filepath.Base(file), line+n)
	}
	base := func(caller string) string {
		if caller == "" {
			return ""
		}
		return filepath.Base(caller)
	}
	holds, waits := make(map[string]string), make(map[string]string)
	inside := func(context.Context) error { <-ctx.Done(); return nil }

	l, job := c.Locker("plain"), WithOwner(context.Background(), NewOwner())
	holds["plain"] = after(1)
	must(t, l.LockContext(job))
	must(t, l.LockContext(job)) // a re-entry
	defer l.UnlockContext(job)
	defer l.UnlockContext(job)
	waits["plain"] = after(2)
	calls.Go(func() {
		c.Locker("plain").LockContext(ctx)
	})
	holds["do"] = after(2)
	calls.Go(func() {
		c.FencedLocker("do").Do(ctx, inside)
	})
	holds["lead"] = after(2)
	calls.Go(func() {
		c.Election("lead").Run(ctx, inside)
	})
	holds["permits"] = after(1)
	permits, err := c.Semaphore("permits", 2).Acquire(ctx, 2)
	must(t, err)
	holds["one"], holds["other"] = after(1), after(1)
	several, err := All(c.Locker("one"), c.Locker("other")).Acquire(ctx)
	must(t, err)
	rw := c.RWLocker("read")
	holds["read"] = after(1)
	rw.RLock()
	defer rw.RUnlock()
	synctest.Wait()

	seen := make(map[string]string)
	for _, h := range c.Holds() {
		seen[h.Name] = base(h.Caller)
	}
	if fmt.Sprint(seen) != fmt.Sprint(holds) {
		t.Errorf("held at %v\nwant    %v", seen, holds)
	}
	seen = make(map[string]string)
	for _, w := range c.Waits() {
		seen[w.Name] = base(w.Caller)
	}
	if fmt.Sprint(seen) != fmt.Sprint(waits) {
		t.Errorf("waits at %v\nwant     %v", seen, waits)
	}
	must(t, permits.Release(ctx))
	must(t, several.Release(ctx))
}
