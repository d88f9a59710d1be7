package dlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func BenchmarkLock(b *testing.B) {
	c := dlock.New(membackend.New())
	defer c.Close()
	l := c.Locker("x")
	inside := 0
	b.ReportAllocs()
	for b.Loop() {
		l.Lock()
		inside++
		l.Unlock()
	}
}

func BenchmarkLockContext(b *testing.B) {
	c := dlock.New(membackend.New())
	defer c.Close()
	l := c.Locker("x")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if err := l.LockContext(ctx); err != nil {
			b.Fatal(err)
		}
		if err := l.UnlockContext(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// A hand-over takes as long among many waiters as among few.
func BenchmarkHandover(b *testing.B) {
	for name, lock := range map[string]func(c *dlock.Client, shared *dlock.Locker){
		"own Lockers": func(c *dlock.Client, _ *dlock.Locker) {
			l := c.Locker("x")
			l.Lock()
			defer l.Unlock()
		},
		"Do": func(c *dlock.Client, _ *dlock.Locker) {
			c.Locker("x").Do(context.Background(), func(context.Context) error { return nil })
		},
		"shared Locker": func(_ *dlock.Client, l *dlock.Locker) { l.Lock(); defer l.Unlock() },
	} {
		for _, waiters := range []int{500, 20_000} {
			b.Run(fmt.Sprint(name, ", waiters ", waiters), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					c := dlock.New(membackend.New(), dlock.WithHandover(time.Hour))
					l := c.Locker("x")
					l.Lock()
					var all sync.WaitGroup
					for range waiters {
						all.Go(func() { lock(c, l) })
					}
					time.Sleep(50 * time.Millisecond) // most of them wait by then
					b.StartTimer()
					l.Unlock()
					all.Wait()
					b.StopTimer()
					c.Close()
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*waiters),
					"ns/hand-over")
			})
		}
	}
}
