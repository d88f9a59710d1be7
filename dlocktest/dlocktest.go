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

// Store is an in-memory store for locks, with methods that inject faults. Create one with [New]. It
// is safe for concurrent use.
type Store struct {
	t    testing.TB
	mem  *membackend.Backend
	view memory // the Store's own session, without faults

	mu       sync.Mutex
	faults   []fault           // faults of the next steps, in order
	hanging  chan struct{}     // closed when hanging steps continue; nil if no step hangs
	paused   chan struct{}     // closed when renewals resume; nil if they aren't paused
	sessions map[*session]bool // the open sessions
	waits    map[*waiting]bool
	owed     map[string]bool // the owner strings whose releases have failed
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

// New returns an empty store for the test t. Create clients as for any other store, with
// dlock.New(store).
//
// When the test has returned, and the cleanups that it registered after New have run, all faults
// end. Then t fails if a lock is still held, or a call still waits for one, and the error names the
// clients. The check waits up to three seconds for releases in the background, or up to fifteen if
// a fault has delayed them. A lock that has no holder, but stays taken after dlock.AtLeast or
// dlock.Client.Once, doesn't count. The check can't find one kind of waiting call: if a Locker has
// lost its lock and wasn't unlocked, a call that waits for that Locker sends no request to the
// store. A test that has already failed gets no further error. If a test leaves a lock held on
// purpose, like a process that crashes, call [Store.Wipe] at its end.
//
// With testing/synctest, call New inside the bubble, with the bubble's t. Then all times are
// virtual. With the outer test's t, the check would run outside the bubble, and panic.
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

// Limits implements [backend.Backend]. The store supports all kinds of lock, without limits.
func (s *Store) Limits() backend.Limits { return s.mem.Limits() }

// Lose makes all holders lose the lock with the given name, whatever its kind. If it has several
// readers or holders of permits, all of them lose it. A waiter gets the lock next. As with any
// store, the holders aren't notified. A holder finds out at its next renewal, after at most a third
// of its lease. With a fixed lease it finds out when the lease expires. Then the context of a Do or
// Hold ends, with a dlock.Loss as its cause. The reason is LossGone, or LossTaken if another client
// has acquired the lock meanwhile. So wait until that context ends. In a testing/synctest bubble,
// this takes no real time. Elsewhere, give the client a short lease. Lose fails t if the lock is
// free.
func (s *Store) Lose(name string) {
	s.t.Helper()
	i := s.inspect(name)
	if len(holders(i)) == 0 {
		s.t.Errorf("dlocktest: Lose: %s", s.describe(i))
		return
	}
	kind := i.Kind
	if i.Holders[0].Kind == backend.Read { // a writer is listed first
		kind = backend.Read
	}
	if _, err := s.view.ForceRelease(context.Background(),
		backend.ForceReleaseRequest{Kind: kind, Name: name}); err != nil {
		s.t.Errorf("dlocktest: Lose(%q): %v", name, err)
	}
}

// Wipe makes the store lose all locks, like a Redis server that restarts without its data. It also
// loses locks that stay taken without a holder. The holders aren't notified. Each relies on its
// lock until its next renewal, for at most a third of its lease, or until a fixed lease expires.
// Meanwhile waiters can get the locks. Fencing tokens continue to increase.
func (s *Store) Wipe() { s.mem.Wipe() }

// Held fails t unless the lock with the given name is held now, whatever its kind.
func (s *Store) Held(t testing.TB, name string) {
	t.Helper()
	if i := s.inspect(name); len(holders(i)) == 0 {
		t.Errorf("dlocktest: Held: %s", s.describe(i))
	}
}

// Free fails t unless the lock with the given name is free now. The error names the holder, or says
// that the lock stays taken. A semaphore is free if no permit is acquired.
func (s *Store) Free(t testing.TB, name string) {
	t.Helper()
	if i := s.inspect(name); !i.Free() {
		t.Errorf("dlocktest: Free: %s", s.describe(i))
	}
}

// inspect returns the store's data about the lock with the given name.
func (s *Store) inspect(name string) backend.Inspection {
	i, err := s.view.Inspect(context.Background(), backend.InspectRequest{Name: name})
	if err != nil {
		panic(fmt.Sprintf("dlocktest: %v", err)) // membackend returns no error here
	}
	return i
}

// holders returns the holders of a lock, except former holders of a lock that stays taken.
func holders(i backend.Inspection) []backend.Holder {
	return slices.DeleteFunc(slices.Clone(i.Holders), func(h backend.Holder) bool { return h.Kept })
}

// describe names the holders of a lock.
func (s *Store) describe(i backend.Inspection) string {
	if i.Free() {
		return fmt.Sprintf("nobody has the lock %q", i.Name)
	}
	held := holders(i)
	if len(held) == 0 {
		h := i.Holders[0]
		return fmt.Sprintf("nobody has the lock %q, which stays taken for another %v: %s has "+
			"given it back", i.Name, h.Remaining.Round(time.Millisecond), s.name(h.Owner))
	}
	who := make([]string, len(held))
	for n, h := range held {
		who[n] = s.name(h.Owner) + manner(h)
	}
	return fmt.Sprintf("the lock %q is held by %s", i.Name, strings.Join(who, ", "))
}

// manner describes how a holder holds the lock, such as for reading or with permits.
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

// name describes the client of an owner, for a test's error message.
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

// clientOf returns the client's id in an owner string, which consists of the id, a colon and a
// number.
func clientOf(owner string) string {
	if i := strings.LastIndexByte(owner, ':'); i >= 0 {
		return owner[:i]
	}
	return owner
}
