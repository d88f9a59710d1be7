package etcdbackend

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
)

// A granter is an etcd that keeps leases.
type granter struct {
	pb.LeaseClient
	delay time.Duration // of a grant
	slow  time.Duration // how long a revocation takes; one that isn't waited for isn't done
	lost  bool          // answers to grants are
	down  bool

	mu      sync.Mutex
	alive   map[int64]bool
	granted int
}

func (g *granter) LeaseGrant(
	ctx context.Context, req *pb.LeaseGrantRequest, opts ...grpc.CallOption,
) (*pb.LeaseGrantResponse, error) {
	seemSent(opts)
	time.Sleep(g.delay)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.alive == nil {
		g.alive = make(map[int64]bool)
	}
	if g.alive[req.ID] {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	g.alive[req.ID] = true
	g.granted++
	if g.lost {
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	return &pb.LeaseGrantResponse{ID: req.ID, TTL: max(req.TTL, 2)}, ctx.Err()
}

func (g *granter) LeaseRevoke(
	ctx context.Context, req *pb.LeaseRevokeRequest, _ ...grpc.CallOption,
) (*pb.LeaseRevokeResponse, error) {
	select {
	case <-time.After(g.slow):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.down:
		return nil, status.Error(codes.Unavailable, "down")
	case !g.alive[req.ID]:
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	delete(g.alive, req.ID)
	return &pb.LeaseRevokeResponse{}, nil
}

// seemSent makes a request look as if it had been sent.
func seemSent(opts []grpc.CallOption) {
	for _, opt := range opts {
		if p, ok := opt.(grpc.PeerCallOption); ok {
			p.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
}

// count returns how many leases there are, and how many there ever were.
func (g *granter) count() (alive, granted int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.alive), g.granted
}

func TestLeasesAreUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granter{}
		ls := newLeases(&store{lease: g})
		t.Cleanup(func() { ls.close(lease{}) })
		for range 100 {
			l, err := ls.get(t.Context(), 30)
			if err != nil || l.ttl != 30 {
				t.Fatal(l, err)
			}
			ls.put(l)
			time.Sleep(100 * time.Millisecond)
		}
		if alive, granted := g.count(); alive != 1 || granted != 1 {
			t.Errorf("%d of %d leases are left, want one", alive, granted)
		}
		// One of another length is another, and one that was idle for long is none.
		l, _ := ls.get(t.Context(), 60)
		ls.put(l)
		time.Sleep(time.Minute)
		if alive, granted := g.count(); alive != 0 || granted != 2 {
			t.Errorf("%d of %d leases are left, want none of two", alive, granted)
		}
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if len(ls.shelves) != 0 || ls.sweeping {
			t.Errorf("%d kinds of leases are remembered; sweeping: %v", len(ls.shelves),
				ls.sweeping)
		}
	})
}

// Callers that give up while a lease is being granted leave it to the next one, and don't ask for a
// lease each.
func TestGivingUpLeavesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granter{delay: time.Second}
		ls := newLeases(&store{lease: g})
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := ls.get(ctx, 3600); backend.KindOf(err) != backend.Retry ||
				!errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		if l, err := ls.get(t.Context(), 3600); err != nil {
			t.Error(err)
		} else {
			ls.put(l)
		}
		if alive, granted := g.count(); alive > 2 || granted > 2 {
			t.Errorf("%d of %d leases are left", alive, granted)
		}
		ls.close(lease{})
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if alive, _ := g.count(); alive != 0 {
			t.Errorf("%d leases are left after Close", alive)
		}
	})
}

// The id of a lease is known before it is granted, so that it is revoked though nobody knows that
// it was.
func TestLostGrantsAreRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granter{lost: true, down: true}
		ls := newLeases(&store{lease: g})
		defer ls.close(lease{})
		for range 5 {
			_, err := ls.get(t.Context(), 3600)
			if backend.KindOf(err) != backend.Retry {
				t.Errorf("%v of kind %v", err, backend.KindOf(err))
			}
		}
		time.Sleep(time.Minute)
		if alive, _ := g.count(); alive != 5 {
			t.Fatalf("%d leases, want 5", alive)
		}
		g.mu.Lock()
		g.down = false
		g.mu.Unlock()
		time.Sleep(time.Minute)
		if alive, _ := g.count(); alive != 0 {
			t.Errorf("%d leases are left", alive)
		}
	})
}

// A slow server, too, is rid of the leases of a client that is closed: they may be long.
func TestCloseRevokesOnASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granter{slow: 1500 * time.Millisecond}
		ls := newLeases(&store{lease: g})
		var all []lease
		for range 50 {
			l, err := ls.get(t.Context(), 3600)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		for _, l := range all {
			ls.put(l)
		}
		ls.close(lease{})
		ls.settle()
		if alive, _ := g.count(); alive != 0 {
			t.Errorf("%d leases are left after Close", alive)
		}
	})
}

// Where a lease that was idle is gone the others are not trusted.
func TestDistrustedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granter{}
		ls := newLeases(&store{lease: g})
		var all []lease
		for range 3 {
			l, err := ls.get(t.Context(), 30)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		for _, l := range all {
			ls.put(l)
		}
		ls.distrust()
		if ls.ready(30) {
			t.Error("a lease is offered that may be gone")
		}
		time.Sleep(2 * time.Second)
		if alive, _ := g.count(); alive != 0 {
			t.Errorf("%d leases are left", alive)
		}
		ls.close(lease{})
		// After Close a lease is still granted to a caller that needs it, and is revoked when it is
		// given back.
		l, err := ls.get(t.Context(), 30)
		if err != nil {
			t.Fatal(err)
		}
		ls.put(l)
		synctest.Wait()
		if alive, granted := g.count(); alive != 0 || granted != 4 {
			t.Errorf("%d of %d leases are left", alive, granted)
		}
	})
}

// A lease that is kept for a time is revoked then, or later if no server answers. It is left to run
// out if the session is closed, or if the time is longer than longestTimed.
func TestLeasesThatAreRevokedAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &granter{}
		ls := newLeases(&store{lease: g})
		left := func(want int) {
			t.Helper()
			synctest.Wait()
			if alive, _ := g.count(); alive != want {
				t.Fatalf("%d leases are left, want %d", alive, want)
			}
		}
		keep := func(d time.Duration) {
			t.Helper()
			l, err := ls.fresh(t.Context(), int64(d/time.Second)+2)
			if err != nil {
				t.Fatal(err)
			}
			ls.revokeIn(l, d)
		}
		keep(900 * time.Millisecond)
		time.Sleep(899 * time.Millisecond)
		left(1)
		time.Sleep(time.Millisecond)
		left(0)

		keep(2 * time.Second)
		g.mu.Lock()
		g.down = true
		g.mu.Unlock()
		time.Sleep(3 * time.Second)
		left(1)
		g.mu.Lock()
		g.down = false
		g.mu.Unlock()
		time.Sleep(sweepEvery)
		left(0)

		keep(longestTimed + 1)
		keep(time.Second)
		ls.close(lease{})
		time.Sleep(time.Hour)
		left(2)
	})
}
