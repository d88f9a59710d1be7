package dlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		c1, c2 := dlock.New(b), dlock.New(b)
		defer c1.Close()
		defer c2.Close()
		n := 0
		var wg sync.WaitGroup
		for i := range 16 {
			c := c1
			if i%2 == 0 {
				c = c2
			}
			l := c.Locker("x")
			if i%4 == 0 {
				l = c1.Locker("x")
			}
			wg.Go(func() {
				for range 20 {
					l.Lock()
					m := n
					time.Sleep(time.Millisecond)
					n = m + 1
					l.Unlock()
				}
			})
		}
		wg.Wait()
		if n != 320 {
			t.Fatal(n)
		}
		l := c1.Locker("y")
		l.Lock()
		time.Sleep(time.Hour)
		if ok, err := c2.Locker("y").TryLock(t.Context()); ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := c2.Locker("y").TryLock(t.Context(), dlock.Wait(time.Minute)); ok || err != nil {
			t.Fatal(ok, err)
		}
		l.Unlock()
		ctx := dlock.WithOwner(context.Background(), dlock.NewOwner())
		for range 3 {
			if err := l.LockContext(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := l.HoldCount(ctx); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		for range 3 {
			if err := l.UnlockContext(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.UnlockContext(ctx); !errors.Is(err, dlock.ErrNotHeld) {
			t.Fatal(err)
		}
		err := l.Do(context.Background(), func(ctx context.Context) error {
			return l.Do(ctx, func(ctx context.Context) error {
				c2.Locker("y").ForceUnlock(ctx)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		t.Log(err)
		if !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
	})
}
