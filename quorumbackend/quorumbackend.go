package quorumbackend

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	fewest = 3  // the minimum number of stores; of two, a majority would need both
	most   = 64 // the maximum number of stores; a set of them fits in a word
)

// quorum implements [backend.Backend].
type quorum struct {
	stores []backend.Backend
	limits backend.Limits
	// patience is the minimum time to wait for a store that another store can replace. Only tests
	// change it.
	patience time.Duration
}

// New returns a backend that keeps each lock in several independent stores at once. The holder
// holds the lock in a majority of them. All programs that share locks must name the same stores in
// the same order.
//
// New panics if there are fewer than three stores or more than 64, or if one is nil. The stores may
// be of any kind, and of different kinds. The Limits of the backend combine those of the stores:
// LeaseStep is a multiple of each store's LeaseStep, and MinLease is the largest of any store.
func New(stores ...backend.Backend) backend.Backend {
	if len(stores) < fewest || len(stores) > most {
		panic(fmt.Sprintf("quorumbackend: New with %d stores; it takes %d to %d", len(stores),
			fewest, most))
	}
	for i, b := range stores {
		if b == nil {
			panic(fmt.Sprintf("quorumbackend: New: store %d is nil", i+1))
		}
	}
	return &quorum{append([]backend.Backend(nil), stores...), limitsOf(stores), leastPatience}
}

// limitsOf returns the limits that apply to all of the stores.
func limitsOf(stores []backend.Backend) backend.Limits {
	all := backend.Limits{LeaseStep: time.Millisecond}
	reads := true
	for _, b := range stores {
		l := b.Limits()
		all.MinLease = max(all.MinLease, l.MinLease)
		if l.LeaseStep > 0 {
			all.LeaseStep = leastCommonMultiple(all.LeaseStep, l.LeaseStep)
		}
		reads = reads && l.Kinds.Has(backend.Read) && l.Kinds.Has(backend.Write)
	}
	if reads {
		all.Kinds = backend.KindsOf(backend.Read, backend.Write)
	} else {
		all.Kinds = backend.KindsOf(backend.Exclusive)
	}
	return all
}

func leastCommonMultiple(a, b time.Duration) time.Duration {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// Limits implements [backend.Backend].
func (q *quorum) Limits() backend.Limits { return q.limits }

// String returns the name that stands for this backend in dlock's errors.
func (q *quorum) String() string { return fmt.Sprintf("a quorum of %d stores", len(q.stores)) }

// Open implements [backend.Backend].
func (q *quorum) Open() backend.Session {
	s := &session{
		limits:   q.limits,
		need:     len(q.stores)/2 + 1,
		holds:    make(map[key]*hold),
		contests: make(map[string]*contest),
		subs:     make(map[*subscription]struct{}),
		// Start at a random number. Then, if two sessions share an owner by mistake, the stores see
		// two owners.
		attempts: rand.Uint32(),
		began:    time.Now(),
		prompt:   true,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for i, b := range q.stores {
		st := newStore(i, b, q.patience, s.began)
		s.stores = append(s.stores, st)
		s.prompt = s.prompt && st.prompt
		s.deaf = s.deaf || st.tells == nil
	}
	for i := range s.stores {
		s.orders = append(s.orders, append(append([]*store(nil), s.stores[i:]...), s.stores[:i]...))
	}
	return s
}

// reasons explains why a quorum doesn't support a kind of lock.
var reasons = map[backend.Kind]string{
	backend.Fenced: "each store counts tokens of its own, and the largest that a majority has " +
		"given need not grow",
	backend.Fair: "each store has a line of its own, and they need not agree on who is first",
	backend.Permits: "each store counts what is out by itself, and majorities for different " +
		"holders may overlap in different stores",
	backend.Latch: "each store counts down by itself, and one that was away for a while would " +
		"open its latch later, or never",
}

// whyNot implements [backend.Capabilities].WhyNot.
func whyNot(k backend.Kind) string {
	reason, ok := reasons[k]
	switch {
	case !ok && (k == backend.Read || k == backend.Write):
		return "not all of its stores have them"
	case !ok:
		return "it doesn't know them"
	}
	return reason
}

// check returns an error if the session doesn't support a kind of lock.
func (s *session) check(k backend.Kind) error {
	if s.limits.Kinds.Has(k) {
		return nil
	}
	err := backend.UnknownKind("quorumbackend", k)
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("%w: %s", err, whyNot(k))}
}

// home returns the number of the store that is asked first for the lock with the given name. It is
// the same for all clients.
func home(name string, stores int) int {
	return int(crc32.ChecksumIEEE([]byte(name)) % uint32(stores))
}

// errUnanswered is the error of a store that hadn't answered when the session stopped waiting.
var errUnanswered = errors.New("no answer")
