package dlocktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// Store is a store for locks in the memory of this process, whose faults are called by name. Make
// one with [New]. It is safe for concurrent use.
type Store struct {
	t    testing.TB
	mem  *membackend.Backend
	view memory // the store's own, which no fault touches

	mu       sync.Mutex
	faults   []fault           // of the next steps
	hanging  chan struct{}     // closed when steps that hang go on; nil if none is to hang
	paused   chan struct{}     // closed when renewals go on; nil if they do
	sessions map[*session]bool // that are open
	waits    map[*waiting]bool
	owed     map[string]bool // owners of whom a release was not carried out
}

// memory is a session of membackend.
type memory interface {
	backend.Session
	backend.Notifier
	backend.Liner
	backend.Inspector
	backend.Lister
	backend.Latcher
}

// New returns an empty store for the test t. Make clients as with any other store:
// dlock.New(store).
//
// When the test and its later cleanups are over, all faults end. Then t fails if a lock is still
// held or waited for, and the error says by whom. Releases in the background have three seconds for
// that, or fifteen if a fault has delayed them. A lock that merely stays taken, after dlock.AtLeast
// or dlock.Client.Once, doesn't count. A waiter for a Locker that was locked, lost and not unlocked
// isn't seen, since it asks no store. A test that has failed already gets no further error. A test
// that leaves a lock on purpose, as a process that crashes does, calls [Store.Wipe] at its end.
//
// In a bubble of testing/synctest call New inside, with the bubble's t: then all times are virtual.
// With the t of the outer test the check would run outside of the bubble, and panic.
func New(t testing.TB) *Store {
	mem := membackend.New()
	s := &Store{
		t:        t,
		mem:      mem,
		view:     mem.Open().(memory),
		sessions: make(map[*session]bool),
		waits:    make(map[*waiting]bool),
		owed:     make(map[string]bool),
	}
	t.Cleanup(s.check)
	return s
}

// Open implements [backend.Backend].
func (s *Store) Open() backend.Session {
	session := &session{memory: s.mem.Open().(memory), store: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[session] = true
	return session
}

// Limits implements [backend.Backend]: the store has no limits, and all kinds of lock.
func (s *Store) Limits() backend.Limits { return s.mem.Limits() }

// Lose takes the lock of that name, of any kind, from all its holders: all readers, or all permits.
// A waiter gets it next. As with any store nobody is told: a holder finds out at its next renewal,
// which is a third of its lease later at most, or with a fixed lease at the end of that. Then the
// context of a Do or Hold ends, with a dlock.Loss as its cause. The reason is LossGone, or LossTaken
// if another has the lock by then. So wait for the context, in a bubble or with a client whose lease
// is short. It is an error of the test if the lock is free.
func (s *Store) Lose(name string) {
	s.t.Helper()
	i := s.inspect(name)
	if len(holders(i)) == 0 {
		s.t.Errorf("dlocktest: Lose: %s", s.describe(i))
		return
	}
	kind := i.Kind
	if i.Holders[0].Kind == backend.Read { // a writer would be first
		kind = backend.Read
	}
	if _, err := s.view.ForceRelease(context.Background(), backend.ForceReleaseRequest{Kind: kind, Name: name}); err != nil {
		s.t.Errorf("dlocktest: Lose(%q): %v", name, err)
	}
}

// Wipe loses all locks, also those that stay taken, as a Redis does that restarts without its data.
// As there, no holder is told: each goes on believing until its next renewal, a third of a lease
// later at most, or with a fixed lease until that ends. Waiters get in meanwhile. Fencing tokens go
// on growing.
func (s *Store) Wipe() { s.mem.Wipe() }

// Held fails t unless the lock of that name is held now, whatever its kind.
func (s *Store) Held(t testing.TB, name string) {
	t.Helper()
	if i := s.inspect(name); len(holders(i)) == 0 {
		t.Errorf("dlocktest: Held: %s", s.describe(i))
	}
}

// Free fails t unless the lock of that name can be had now: the error says who has it, or that it
// stays taken. Of a semaphore all permits must be back.
func (s *Store) Free(t testing.TB, name string) {
	t.Helper()
	if i := s.inspect(name); !i.Free() {
		t.Errorf("dlocktest: Free: %s", s.describe(i))
	}
}

// inspect returns what a name holds.
func (s *Store) inspect(name string) backend.Inspection {
	i, err := s.view.Inspect(context.Background(), backend.InspectRequest{Name: name})
	if err != nil {
		panic(fmt.Sprintf("dlocktest: %v", err)) // membackend has no reason for that
	}
	return i
}

// holders returns who has a lock, and hasn't given it back.
func holders(i backend.Inspection) []backend.Holder {
	return slices.DeleteFunc(slices.Clone(i.Holders), func(h backend.Holder) bool { return h.Kept })
}

// describe says who has a lock.
func (s *Store) describe(i backend.Inspection) string {
	if i.Free() {
		return fmt.Sprintf("nobody has the lock %q", i.Name)
	}
	held := holders(i)
	if len(held) == 0 {
		h := i.Holders[0]
		return fmt.Sprintf("nobody has the lock %q, which stays taken for another %v: %s has given it back", i.Name, h.Remaining.Round(time.Millisecond), s.name(h.Owner))
	}
	who := make([]string, len(held))
	for n, h := range held {
		who[n] = s.name(h.Owner) + manner(h)
	}
	return fmt.Sprintf("the lock %q is held by %s", i.Name, strings.Join(who, ", "))
}

// manner says in what way somebody has a lock.
func manner(h backend.Holder) string {
	switch {
	case h.Kind == backend.Permits && h.Count == 1:
		return " (1 permit)"
	case h.Kind == backend.Permits:
		return fmt.Sprintf(" (%d permits)", h.Count)
	case h.Kind == backend.Read, h.Kind == backend.Write:
		return " (" + h.Kind.String() + ")"
	case h.Count > 1:
		return fmt.Sprintf(" (%d times)", h.Count)
	default:
		return ""
	}
}

// name says which client an owner is of.
func (s *Store) name(owner string) string {
	client := clientOf(owner)
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range s.sessions {
		if session.client == client {
			return fmt.Sprintf("client %q", client)
		}
	}
	return fmt.Sprintf("client %q, which is closed", client)
}

// clientOf returns the id of the client that an owner is of, which is followed by a colon and a number.
func clientOf(owner string) string {
	if i := strings.LastIndexByte(owner, ':'); i >= 0 {
		return owner[:i]
	}
	return owner
}
