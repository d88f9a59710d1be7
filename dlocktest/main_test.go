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

// recorder is a testing.TB that records the test's errors.
type recorder struct {
	testing.TB // nil, so any method that isn't defined below panics

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

// said returns the errors recorded so far.
func (r *recorder) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errors
}

// end runs the cleanups of the test, and returns all recorded errors.
func (r *recorder) end() []string {
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		last()
	}
	return r.said()
}

// wants fails t unless the test has recorded exactly these errors. Each error is given as parts
// that it must contain.
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

// A Store without faults passes the contract tests. The cases that are left out take half of the
// time, and would only test membackend, whose own tests run them.
func TestContract(t *testing.T) {
	contract.Run(t, contract.Harness{Virtual: true, NewStore: func(t *testing.T) contract.Store {
		if strings.Contains(t.Name(), "/locker_without_hand-over/") ||
			strings.Contains(t.Name(), "/histories/") {
			t.Skip("run on membackend")
		}
		r := new(recorder) // its cleanups never run, so locks that a case leaves cause no error
		store := dlocktest.New(r)
		t.Cleanup(func() { r.wants(t) })
		return contract.Store{
			Backend: func() backend.Backend { return store },
			Wipe:    store.Wipe,
		}
	}})
}

// A session of a Store has all capabilities of a membackend session, except those that don't hold
// for a store that may hang.
func TestCapabilities(t *testing.T) {
	s, can := backend.Open(dlocktest.New(t))
	defer s.Close()
	if can.Notifier == nil || can.Inspector == nil || can.Lister == nil || can.Liner == nil ||
		can.Latcher == nil {
		t.Errorf("something is missing: %+v", can)
	}
	if can.BatchRenewer != nil || can.Batcher != nil || can.Steps != backend.StepsReturn {
		t.Errorf("what hangs doesn't hang alone: %+v", can)
	}
}
