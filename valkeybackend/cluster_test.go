package valkeybackend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.ValkeyCluster(t, 3)
	connect := func(t *testing.T, change ...option) valkey.Client {
		t.Helper()
		return connect(t, nodes[0].Addr, change...) // it is told of the others
	}

	t.Run("steps", func(t *testing.T) {
		s := open(t, connect(t))
		for _, step := range steps {
			if err := step.Run(t.Context(), s); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}
	})

	t.Run("several locks", func(t *testing.T) {
		wiretest.TogetherInACluster(t, valkeybackend.New(connect(t)))
	})

	// Nothing that a lock needs goes to a replica, whatever else may.
	t.Run("reading from replicas", func(t *testing.T) {
		s := open(t, connect(t, func(o *valkey.ClientOption) {
			o.SendToReplicas = func(cmd valkey.Completed) bool {
				if cmd.IsReadOnly() && !cmd.NoReply() {
					t.Errorf("%q reads only", cmd.Commands())
				}
				return cmd.IsReadOnly()
			}
		}))
		for _, step := range steps {
			if err := step.Run(t.Context(), s); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}
	})

	t.Run("one command each", func(t *testing.T) {
		s := open(t, connect(t))
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
		var monitors []*wiretest.Monitor
		for _, node := range nodes {
			monitors = append(monitors, wiretest.Watch(t, node.Addr))
		}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
		var commands []string
		for _, m := range monitors {
			commands = append(commands, m.Commands()...)
		}
		if len(commands) != 2 {
			t.Errorf("acquire and release: %q", commands)
		}
	})

	t.Run("slots", func(t *testing.T) {
		s := open(t, connect(t))
		for _, name := range []string{"a{b", "{}x", "a}b"} {
			_, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Name: name, Owner: alice, Lease: lease,
			})
			wantKind(t, err, backend.Refused)
			_, err = s.Subscribe(t.Context(), backend.SubscribeRequest{
				Name: name, Wake: func(backend.Wakeup) {},
			})
			wantKind(t, err, backend.Refused)
			s.RenewBatch(t.Context(), []backend.RenewRequest{{
				Name: name, Owner: alice, Lease: lease,
			}},
				func(_ int, _ backend.RenewResult, err error) { wantKind(t, err, backend.Refused) })
		}
	})

	t.Run("wake-ups", func(t *testing.T) {
		s, other := open(t, connect(t)), open(t, connect(t))
		for i := range 10 { // on all nodes
			l := subscribe(t, s, fmt.Sprint("name", i))
			free(t, other, l.Name)
			l.Wait()
		}
	})

	t.Run("a node hangs", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := open(t, connect(t))
		var reqs []backend.RenewRequest
		for i := range 100 {
			name := fmt.Sprint("renewed", i)
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
				Name: name, Owner: alice, Lease: lease,
			}))
			reqs = append(reqs, backend.RenewRequest{Name: name, Owner: alice, Lease: lease})
		}
		onHung := 0
		fmt.Sscan(nodes[1].Do("DBSIZE"), &onHung)
		if onHung == 0 || onHung == len(reqs) {
			t.Fatalf("%d of %d names on one node", onHung, len(reqs))
		}
		answers := make(chan error, len(reqs))
		renew := func() {
			s.RenewBatch(ctx, reqs, func(_ int, res backend.RenewResult, err error) {
				if err == nil && !res.Held {
					err = errors.New("lost")
				}
				answers <- err
			})
		}
		renew() // makes the script known
		for range reqs {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
		}

		nodes[1].Stop()
		defer nodes[1].Cont()
		done := make(chan struct{})
		go func() { defer close(done); renew() }()
		for range len(reqs) - onHung {
			select {
			case err := <-answers:
				if err != nil {
					t.Errorf("renewal on another node: %v", err)
				}
			case <-time.After(testservers.Patience):
				t.Fatal("a node that hangs delays renewals on others")
			}
		}
		select {
		case err := <-answers:
			t.Errorf("a node that hangs has answered: %v", err)
		default:
		}
		nodes[1].Cont()
		<-done
		if len(answers) != onHung {
			t.Errorf("%d answers of the node that hung, want %d", len(answers), onHung)
		}
	})

	t.Run("a slot moves", func(t *testing.T) {
		ctx := t.Context()
		s := open(t, connect(t))
		const name = "moving"
		req := backend.AcquireRequest{Name: name, Owner: alice, Lease: lease, Reentry: true}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req)) // the client knows where
		wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
			Name: name, Owner: alice, Lease: lease,
		}))
		wiretest.NewMove(t, nodes, name).Finish()
		for count := range 2 {
			if res := wiretest.Must[backend.AcquireResult](t)(
				s.Acquire(ctx, req)); res.Count != count+1 {
				t.Errorf("%d holds, want %d", res.Count, count+1)
			}
		}
		s.RenewBatch(ctx, []backend.RenewRequest{{Name: name, Owner: alice, Lease: lease}},
			func(_ int, res backend.RenewResult, err error) {
				if err != nil || !res.Held {
					t.Errorf("renewal: %v, %v", res, err)
				}
			})
	})
}
