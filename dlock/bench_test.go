package dlock_test

import (
	"context"
	"testing"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func BenchmarkUncontended(b *testing.B) {
	c := dlock.New(membackend.New())
	defer c.Close()
	l := c.Locker("x")
	b.ReportAllocs()
	for b.Loop() {
		l.Lock()
		l.Unlock()
	}
}

func BenchmarkUncontendedContext(b *testing.B) {
	c := dlock.New(membackend.New())
	defer c.Close()
	l := c.Locker("x")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		l.LockContext(ctx)
		l.UnlockContext(ctx)
	}
}
