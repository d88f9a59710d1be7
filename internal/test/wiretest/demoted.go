package wiretest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Demoted tests a client that keeps its connections to a master when the master becomes a replica
// of another server. The client's new connections go to the other server, as they would if a host
// name or a virtual address had moved to it. The old master lacks the new master's locks, at least
// for a while, so its answers are wrong. The function connectBackend returns a backend that
// connects with a dialer.
func Demoted(t *testing.T, start func(testservers.TB, ...string) *testservers.Server,
	connectBackend func(
		t *testing.T, dial func(ctx context.Context) (net.Conn, error),
	) backend.Backend) {
	held := func(err error, yes bool) error {
		if err == nil && !yes {
			return errors.New("a replica's word counts")
		}
		return err
	}
	steps := map[string]func(context.Context, Session) error{
		"renew": func(ctx context.Context, s Session) error {
			res, err := s.Renew(ctx, Renew(Alice))
			return held(err, res.Held)
		},
		"renew in a batch": func(ctx context.Context, s Session) (err error) {
			s.RenewBatch(ctx, []backend.RenewRequest{Renew(Alice)}, func(
				_ int, res backend.RenewResult, e error,
			) {
				err = held(e, res.Held)
			})
			return err
		},
		"renew together": func(ctx context.Context, s Session) (err error) {
			other := Renew(Alice)
			other.Name = "other"
			s.RenewBatch(ctx, []backend.RenewRequest{other, Renew(Alice)}, func(
				i int, res backend.RenewResult, e error,
			) {
				if i == 1 {
					err = held(e, res.Held)
				}
			})
			return err
		},
		"release": func(ctx context.Context, s Session) error {
			res, err := s.Release(ctx, Release(Alice))
			return held(err, res.Outcome == backend.Freed)
		},
		"release, asking who waits": func(ctx context.Context, s Session) error {
			req := Release(Alice)
			req.AskWaiting = true
			res, err := s.Release(ctx, req)
			return held(err, res.Outcome == backend.Freed)
		},
	}
	for _, kind := range []backend.Kind{backend.Fenced, backend.Read, backend.Write} {
		for what, c := range map[string]struct {
			step taken
			want string
		}{
			"renew a ": {renews(kind, Alice), "true"}, "renew in a batch a ": {
				renewsInBatch(kind, Alice), "true",
			},
			"release a ": {releases(kind, Alice), "freed"},
		} {
			steps[what+kind.String()] = func(ctx context.Context, s Session) error {
				said, err := c.step(ctx, s)
				return held(err, said == c.want)
			}
		}
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			before, after := start(t), start(t)
			var to atomic.Value
			to.Store(before.Addr)
			s := open(t, connectBackend(t, func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", to.Load().(string))
			}))
			for range 64 {
				// A client may pick one of several connections at random. The many rounds make sure
				// that each of them is used.
				Free(t, s, "n")
				waiting(t, s, "n")
			}
			field, hash := Alice, []any{Alice, "1"}
			switch {
			case strings.HasSuffix(name, backend.Read.String()):
				field, hash = aliceInside, []any{"mode", "read", aliceInside, "1"}
			case strings.HasSuffix(name, backend.Write.String()):
				field, hash = aliceWrites, []any{"mode", "write", aliceWrites, "1"}
			}
			host, _, _ := net.SplitHostPort(after.Addr)
			// no server listens on this port, so the old master copies nothing
			before.Do("REPLICAOF", host, strconv.Itoa(testservers.FreePort(t)))
			to.Store(after.Addr)
			client := connect(t, after.Addr)
			client.HSet(ctx, "n", hash...)
			client.PExpire(ctx, "n", Lease)
			client.Set(ctx, aliceReads, "1", Lease) // only needed for a Read

			err := step(ctx, s)
			WantKind(t, err, backend.Retry)
			if left := client.HGet(ctx, "n", field).Val(); left != "1" {
				t.Errorf("the new master has the lock %q times", left)
			}
			// New connections lead to the new master.
			before.Do("CLIENT", "KILL", "TYPE", "normal")
			testservers.Until(t, "the new master is asked", func() bool {
				return step(ctx, s) == nil
			})
		})
	}
}
