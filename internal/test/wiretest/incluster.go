package wiretest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// InCluster checks plain locks in a cluster of three masters. The function patient makes a backend
// whose client waits for a node that hangs for longer than the test does.
func InCluster(
	t *testing.T, nodes []*testservers.Server, p Package, patient func() backend.Backend,
) {
	session := func(t *testing.T) Session { return open(t, p.Cluster(t, nodes, Options{})) }
	t.Run("steps", func(t *testing.T) { TakesAllSteps(t, session(t)) })
	t.Run("several locks", func(t *testing.T) {
		TogetherInACluster(t, p.Cluster(t, nodes, Options{}))
	})
	t.Run("one command each", func(t *testing.T) { oneCommandEach(t, session(t), nodes) })
	t.Run("slots", func(t *testing.T) { refusesOtherSlots(t, session(t)) })
	t.Run("wake-ups", func(t *testing.T) {
		s, other := session(t), session(t)
		for i := range 10 { // on all nodes
			l := Subscribe(t, s, fmt.Sprint("name", i))
			Free(t, other, l.Name)
			l.Wait()
		}
	})
	t.Run("a node hangs", func(t *testing.T) { nodeHangs(t, open(t, patient()), nodes[1]) })
	t.Run("a slot moves", func(t *testing.T) { slotMoves(t, session(t), nodes) })
}

// TakesAllSteps checks that no step returns an error.
func TakesAllSteps(t *testing.T, s Session) {
	for _, step := range Steps {
		if err := step.Run(t.Context(), s); err != nil {
			t.Errorf("%s: %v", step.Name, err)
		}
	}
}

func oneCommandEach(t *testing.T, s Session, nodes []*testservers.Server) {
	cycle := func() {
		Must[backend.AcquireResult](t)(s.Acquire(t.Context(), Acquire(Alice)))
		Must[backend.ReleaseResult](t)(s.Release(t.Context(), Release(Alice)))
	}
	cycle() // makes the scripts known
	var monitors []*Monitor
	for _, node := range nodes {
		monitors = append(monitors, Watch(t, node.Addr))
	}
	cycle()
	var commands []string
	for _, m := range monitors {
		commands = append(commands, m.Commands()...)
	}
	if len(commands) != 2 {
		t.Errorf("acquire and release: %q", commands)
	}
}

// refusesOtherSlots checks names whose keys would be in several slots.
func refusesOtherSlots(t *testing.T, s Session) {
	for _, name := range []string{"a{b", "{}x", "a}b"} {
		acquire, renew := Acquire(Alice), Renew(Alice)
		acquire.Name, renew.Name = name, name
		_, err := s.Acquire(t.Context(), acquire)
		WantKind(t, err, backend.Refused)
		_, err = s.Subscribe(t.Context(), backend.SubscribeRequest{
			Name: name, Wake: func(backend.Wakeup) {},
		})
		WantKind(t, err, backend.Refused)
		s.RenewBatch(t.Context(), []backend.RenewRequest{renew},
			func(_ int, _ backend.RenewResult, err error) { WantKind(t, err, backend.Refused) })
	}
}

// nodeHangs checks that a node that hangs doesn't delay renewals on others.
func nodeHangs(t *testing.T, s Session, node *testservers.Server) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	onHung := -entries(node)
	var reqs []backend.RenewRequest
	for i := range 100 {
		acquire, renew := Acquire(Alice), Renew(Alice)
		acquire.Name = fmt.Sprint("renewed", i)
		renew.Name = acquire.Name
		Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire))
		reqs = append(reqs, renew)
	}
	onHung += entries(node)
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
	renew() // makes connections, and the script known
	for range reqs {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}

	node.Stop()
	defer node.Cont()
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
	node.Cont()
	<-done
	if len(answers) != onHung {
		t.Errorf("%d answers of the node that hung, want %d", len(answers), onHung)
	}
}

// entries returns the number of keys on a server.
func entries(server *testservers.Server) (n int) {
	fmt.Sscan(server.Do("DBSIZE"), &n)
	return n
}

func slotMoves(t *testing.T, s Session, nodes []*testservers.Server) {
	ctx := t.Context()
	acquire, release, renew := Reenter(Alice), Release(Alice), Renew(Alice)
	acquire.Name, release.Name, renew.Name = "moving", "moving", "moving"
	Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire)) // the client knows where
	Must[backend.ReleaseResult](t)(s.Release(ctx, release))
	NewMove(t, nodes, "moving").Finish()
	for count := range 2 {
		if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire)); res.Count != count+1 {
			t.Errorf("%d holds, want %d", res.Count, count+1)
		}
	}
	s.RenewBatch(ctx, []backend.RenewRequest{renew}, func(
		_ int, res backend.RenewResult, err error,
	) {
		if err != nil || !res.Held {
			t.Errorf("renewal: %v, %v", res, err)
		}
	})
}
