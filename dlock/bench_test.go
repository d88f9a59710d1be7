package dlock_test

import (
	"context"
	"testing"

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
