package membackend_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

func BenchmarkAcquireRelease(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(strconv.Itoa(n)+"others", func(b *testing.B) {
			ctx := context.Background()
			s := membackend.New().Open()
			for i := range n {
				s.Acquire(ctx, backend.AcquireRequest{
					Name: strconv.Itoa(i), Owner: "a", Lease: time.Hour,
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Acquire(ctx, backend.AcquireRequest{
					Name: "name", Owner: "owner", Lease: 30 * time.Second,
				})
				s.Release(ctx, backend.ReleaseRequest{
					Name: "name", Owner: "owner", Lease: 30 * time.Second,
				})
			}
		})
	}
}
