package quorumbackend_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// limited is a store with limits of its own.
type limited struct {
	backend.Backend
	limits backend.Limits
}

func (l limited) Limits() backend.Limits { return l.limits }

func TestLimits(t *testing.T) {
	all := backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Fair,
		backend.Permits)
	for _, c := range []struct{ a, b, c, want backend.Limits }{
		{
			backend.Limits{Kinds: all}, backend.Limits{Kinds: all}, backend.Limits{Kinds: all},
			backend.Limits{
				LeaseStep: time.Millisecond, Kinds: backend.KindsOf(backend.Read, backend.Write),
			},
		},
		{
			backend.Limits{Kinds: all},
			backend.Limits{Kinds: all, MinLease: 2 * time.Second, LeaseStep: time.Second},
			backend.Limits{},
			backend.Limits{
				MinLease: 2 * time.Second, LeaseStep: time.Second,
				Kinds: backend.KindsOf(backend.Exclusive),
			},
		},
		{
			backend.Limits{LeaseStep: 4 * time.Millisecond},
			backend.Limits{LeaseStep: 6 * time.Millisecond}, backend.Limits{MinLease: time.Second},
			backend.Limits{
				MinLease: time.Second, LeaseStep: 12 * time.Millisecond,
				Kinds: backend.KindsOf(backend.Exclusive),
			},
		},
	} {
		m := membackend.New()
		if got := quorumbackend.New(limited{m, c.a}, limited{m, c.b}, limited{m, c.c}).
			Limits(); got != c.want {
			t.Errorf("limits %+v; want %+v", got, c.want)
		}
	}
}

func TestNewPanics(t *testing.T) {
	m := membackend.New()
	for want, stores := range map[string][]backend.Backend{
		"with 0 stores":  nil,
		"with 2 stores":  {m, m},
		"with 65 stores": make([]backend.Backend, 65),
		"store 2 is nil": {m, nil, m},
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, want) {
					t.Errorf("New panics with %q; want %q in it", text, want)
				}
			}()
			quorumbackend.New(stores...)
		}()
	}
}

// A kind that a quorum doesn't have is refused, and the error says why.
func TestOtherKinds(t *testing.T) {
	m := membackend.New()
	s := quorumbackend.New(m, membackend.New(), membackend.New()).Open()
	defer s.Close()
	plain := quorumbackend.New(limited{m, backend.Limits{}}, membackend.New(), membackend.New()).
		Open()
	defer plain.Close()
	for _, c := range []struct {
		s    backend.Session
		kind backend.Kind
		want string
	}{
		{s, backend.Fenced, "quorumbackend has no fenced locks: unsupported operation: each " +
			"store counts tokens of its own"},
		{s, backend.Fair, "quorumbackend has no fair locks: unsupported operation: each store " +
			"has a line of its own"},
		{s, backend.Permits,
			"quorumbackend has no semaphores: unsupported operation: each store counts"},
		{s, backend.Kind(99), "it doesn't know them"},
		{plain, backend.Write, "not all of its stores have them"},
	} {
		_, err := c.s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: c.kind, Name: "n", Owner: alice, Lease: lease, Permits: 1, Limit: 1,
		})
		if !errors.Is(err, errors.ErrUnsupported) || backend.KindOf(err) != backend.Refused ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v; want %q", c.kind, err, c.want)
		}
	}

	client := dlock.New(quorumbackend.New(m, membackend.New(), membackend.New()))
	defer client.Close()
	err := client.FencedLocker("n").LockContext(t.Context())
	if !errors.Is(err, errors.ErrUnsupported) ||
		!strings.Contains(err.Error(), "each store counts tokens of its own") {
		t.Errorf("a fenced Locker: %v; want why there is none", err)
	}
	_, err = client.Latch("n").Count(t.Context())
	if !errors.Is(err, errors.ErrUnsupported) ||
		!strings.Contains(err.Error(), "each store counts down by itself") {
		t.Errorf("a Latch: %v; want why there is none", err)
	}
}

// The errors of calls that a quorum doesn't support name the store in words, not by a Go type.
func TestErrorsNameTheStore(t *testing.T) {
	client := dlock.New(quorumbackend.New(membackend.New(), membackend.New(), membackend.New()))
	defer client.Close()
	ctx := t.Context()
	nothing := func(context.Context) error { return nil }
	_, once := client.Once(ctx, "report", "2026-11-22", time.Hour, nothing)
	for name, err := range map[string]error{
		"AtLeast": client.Locker("report").Do(ctx, nothing, dlock.AtLeast(time.Second)),
		"Once":    once,
		"Fenced":  client.FencedLocker("orders:42").Do(ctx, nothing),
	} {
		if !errors.Is(err, errors.ErrUnsupported) ||
			!strings.Contains(err.Error(), ": a quorum of 3 stores ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
