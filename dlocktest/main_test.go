package dlocktest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/dlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a test that may fail: it records with what.
type recorder struct {
	testing.TB // nil: what isn't below isn't called

	mu       sync.Mutex
	errors   []string
	cleanups []func()
	skipped  bool
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) Failed() bool { return len(r.said()) > 0 }

func (r *recorder) Skipped() bool { return r.skipped }

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// said returns with what the test has failed so far.
func (r *recorder) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errors
}

// end ends the test, and returns with what it has failed by then.
func (r *recorder) end() []string {
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		last()
	}
	return r.said()
}

// wants fails t unless a test has failed with exactly these errors, each of which is given in parts.
func (r *recorder) wants(t *testing.T, errors ...[]string) {
	t.Helper()
	said := r.said()
	if len(said) != len(errors) {
		t.Fatalf("%d errors; want %d: %q", len(said), len(errors), said)
	}
	for i, parts := range errors {
		for _, part := range parts {
			if !strings.Contains(said[i], part) {
				t.Errorf("the error %q doesn't say %q", said[i], part)
			}
		}
	}
}

// A Store whose faults nobody calls is a store as any other. What is left out here takes half of the time, and would find nothing in
// a Store that it doesn't find in memory, which it is run on.
func TestContract(t *testing.T) {
	contract.Run(t, contract.Harness{Virtual: true, NewStore: func(t *testing.T) contract.Store {
		if strings.Contains(t.Name(), "/locker_without_hand-over/") || strings.Contains(t.Name(), "/histories/") {
			t.Skip("run on membackend")
		}
		r := new(recorder) // which never ends: what a case leaves behind is its own affair
		store := dlocktest.New(r)
		t.Cleanup(func() { r.wants(t) })
		return contract.Store{
			Backend: func() backend.Backend { return store },
			Wipe:    store.Wipe,
		}
	}})
}

// Whatever a session of memory can do beside, one of a Store can do, too, but for what isn't so of a
// store that may hang.
func TestCapabilities(t *testing.T) {
	s, can := backend.Open(dlocktest.New(t))
	defer s.Close()
	if can.Notifier == nil || can.Inspector == nil || can.Lister == nil || can.Liner == nil || can.Latcher == nil {
		t.Errorf("something is missing: %+v", can)
	}
	if can.BatchRenewer != nil || can.Batcher != nil || can.Steps != backend.StepsReturn {
		t.Errorf("what hangs doesn't hang alone: %+v", can)
	}
}
