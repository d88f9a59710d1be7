// Package wiretest contains common code for the tests of the backends: requests, steps, and
// connections that break. For the backends on Redis and Valkey it also contains checks of the
// commands on the wire and the keys in a server's memory, servers with arbitrary answers, and
// clusters that change.
package wiretest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
)

// The owners and lease of the requests.
const (
	Alice = "11111111-1111-1111-1111-111111111111:1"
	Bob   = "22222222-2222-2222-2222-222222222222:7"

	Lease = 30 * time.Second
)

// A Session is a session that can notify waiters, and can renew holds in batches.
type Session interface {
	backend.Session
	backend.Notifier
	backend.BatchRenewer
}

// Acquire returns a request to acquire the lock "n". The other requests are for the same lock.
func Acquire(owner string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: "n", Owner: owner, Lease: Lease}
}

// Reenter returns a request for a re-entry.
func Reenter(owner string) backend.AcquireRequest {
	req := Acquire(owner)
	req.Reentry = true
	return req
}

// Release returns a request to release one hold.
func Release(owner string) backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: "n", Owner: owner, Lease: Lease}
}

// Renew returns a request to renew the hold.
func Renew(owner string) backend.RenewRequest {
	return backend.RenewRequest{Name: "n", Owner: owner, Lease: Lease}
}

// A Step is a named step of a session.
type Step struct {
	Name string
	Run  func(context.Context, Session) error
}

// Steps lists every step. The owner is Alice and the lock is "n". The steps return only errors,
// since most tests ignore the results. The first five steps only run scripts. The first [Writing]
// steps can write, and the others only read.
var Steps = []Step{
	{"acquire", func(ctx context.Context, s Session) error {
		_, err := s.Acquire(ctx, Acquire(Alice))
		return err
	}},
	{"re-enter", func(ctx context.Context, s Session) error {
		_, err := s.Acquire(ctx, Reenter(Alice))
		return err
	}},
	{"release", func(ctx context.Context, s Session) error {
		_, err := s.Release(ctx, Release(Alice))
		return err
	}},
	{"renew", func(ctx context.Context, s Session) error {
		_, err := s.Renew(ctx, Renew(Alice))
		return err
	}},
	{"renew in a batch", func(ctx context.Context, s Session) (err error) {
		s.RenewBatch(ctx, []backend.RenewRequest{Renew(Alice)}, func(
			_ int, _ backend.RenewResult, e error,
		) {
			err = e
		})
		return err
	}},
	{"force-release", func(ctx context.Context, s Session) error {
		_, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"})
		return err
	}},
	{"look", func(ctx context.Context, s Session) error {
		_, err := s.Look(ctx, backend.LookRequest{Name: "n", Owner: Alice})
		return err
	}},
	{"look for nobody", func(ctx context.Context, s Session) error {
		_, err := s.Look(ctx, backend.LookRequest{Name: "n"})
		return err
	}},
}

// Writing is the number of Steps that can write.
const Writing = 6

// NewProxy returns a proxy that is closed when the test ends.
func NewProxy(t testing.TB, server string, protocol faults.Protocol) *faults.Proxy {
	t.Helper()
	p := Must[*faults.Proxy](t)(faults.NewProxy(server, protocol))
	t.Cleanup(func() { p.Close() })
	return p
}

// OnLock reports whether a request to Redis or Valkey concerns the lock "n".
func OnLock(r faults.Request) bool { return slices.Contains(r.Words, "n") }

// Must returns a function that returns its first argument, or fails the test if the second is an
// error.
func Must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// WantKind fails the test unless err has this kind.
func WantKind(t testing.TB, err error, kind backend.ErrorKind) {
	t.Helper()
	if !IsKind(err, kind) {
		t.Errorf("error %v of kind %v, want kind %v", err, backend.KindOf(err), kind)
	}
}

// IsKind reports whether err wraps a [backend.Error], and has this kind.
func IsKind(err error, kind backend.ErrorKind) bool {
	_, kinded := errors.AsType[*backend.Error](err)
	return kinded && backend.KindOf(err) == kind
}

// WantHash fails the test unless key contains the given hash, and was just set to expire after ttl.
func WantHash(
	t testing.TB, client *redis.Client, key string, want map[string]string, ttl time.Duration,
) {
	t.Helper()
	if got := client.HGetAll(t.Context(), key).Val(); !maps.Equal(got, want) {
		t.Errorf("HGETALL %s = %v, want %v", key, got, want)
	}
	// The server keeps the exact time of expiry. The lower bound allows for a slow test.
	if got := client.PTTL(t.Context(), key).Val(); got > ttl || ttl > 0 && got < ttl/2 {
		t.Errorf("PTTL %s = %v, want just under %v", key, got, ttl)
	}
}
