package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// HoldInfo describes a lock that a client holds, according to the client.
type HoldInfo struct {
	Name     string
	Kind     backend.Kind
	HolderID string // see [Hold.HolderID]

	// By describes the party that holds the lock. For plain calls of a Locker it is "locker". For
	// an [Owner] it is "owner N", where N is a number that is meaningful only in this process. Each
	// Do and Acquire without an owner has its own N. For a goroutine it is "goroutine N", where N
	// is its number in goroutine dumps. For permits it is "permits".
	By string

	// Caller is the file and line of the call that acquired the lock, such as
	// "/src/orders/ship.go:42". It is empty unless [WithCallers] is set.
	Caller string

	Since   time.Time // when the request that got the lock was sent, or the lock was handed over
	Until   time.Time // the lock is certainly held until this time (see [Hold.Until])
	Renewed bool      // whether it is renewed; false for a fixed lease

	// Lease is the lease requested from the store. While the store answers renewals, at least two
	// thirds of it remain.
	Lease time.Duration

	Count   int    // the number of unlocks that release it
	Permits int    // the number of permits, for a Semaphore
	Token   uint64 // the fencing token; 0 if there is none
}

// WaitInfo describes a call that waits for a lock, according to the client.
type WaitInfo struct {
	Name string
	Kind backend.Kind
	By   string // as in HoldInfo

	Caller string // as in HoldInfo

	Since time.Time // when the call began
	Until time.Time // when the call gives up; zero if unknown
	Place int       // the place in this client's queue for the lock, from 1

	Permits int // the number of permits, for a Semaphore
}

// Holds returns the client's current holds, oldest first. It doesn't ask the store.
func (c *Client) Holds() []HoldInfo {
	s := c.lock()
	var all []HoldInfo
	now := c.now()
	for h := range s.holds() {
		if h.valid(now) && !h.offered {
			all = append(all, h.info(s, c.callers))
		}
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b HoldInfo) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func (h *hold) info(s *state, names *callers) HoldInfo {
	cl := h.claim
	permits, _ := cl.permits()
	return HoldInfo{
		Name: cl.object.name, Kind: backend.Kind(h.kind), HolderID: cl.owner,
		By: called(h.party, h.kind), Caller: names.at(h.site),
		Since: s.epoch.Add(h.since()), Until: s.epoch.Add(cl.Until()), Renewed: cl.Renewed(),
		Lease: cl.Lease(),
		Count: int(h.count), Permits: permits, Token: cl.token(),
	}
}

// Waits returns the client's calls that wait for a lock, oldest first. It doesn't ask the store.
func (c *Client) Waits() []WaitInfo {
	s := c.lock()
	var all []WaitInfo
	for _, table := range s.objects {
		for _, o := range table {
			for q := range o.queues() {
				place := 0
				for a := q.first; a != nil; a = a.next {
					place++
					w := WaitInfo{
						Name: a.name, Kind: backend.Kind(a.kind), By: called(a.party, a.kind),
						Caller: c.callers.at(a.o.site), Since: c.epoch.Add(a.began),
						Place: place, Permits: a.o.permits,
					}
					if a.budget > 0 && a.began+a.budget > 0 { // otherwise it never gives up
						w.Until = c.epoch.Add(a.began + a.budget)
					}
					all = append(all, w)
				}
			}
		}
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b WaitInfo) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Place, b.Place))
	})
	return all
}

// called describes a party, for [HoldInfo].By.
func called(p party, kind protocol.Kind) string {
	switch p := p.(type) {
	case Owner:
		if kind.Many() {
			return "permits"
		}
		return fmt.Sprintf("owner %d", p.id)
	case goroutineOwner:
		return fmt.Sprintf("goroutine %d", uint64(p))
	default:
		return "locker"
	}
}

// Stats contains a client's counters. They are 0 when the client is created.
type Stats struct {
	// Acquisitions, counted by how the lock was acquired (see [Via]).
	FromStore, HandedOver, Reentered, Joined, Granted uint64

	// Acquiring calls that failed, counted by their outcome (see [Outcome]).
	NotAcquired, Canceled, Failed uint64

	Released            uint64 // unlocks, whatever their outcome
	Lost                uint64 // lost holds, including those with a fixed lease
	Renewed, NotRenewed uint64 // answered and unanswered renewals, counted per lock

	Closed bool // whether the client is closed
}

type counter = atomic.Uint64

// Stats returns the client's counters.
func (c *Client) Stats() Stats {
	n := &c.counts
	return Stats{
		FromStore: n.acquired[ViaStore].Load(), HandedOver: n.acquired[ViaHandover].Load(),
		Reentered: n.acquired[ViaReentry].Load(),
		Joined:    n.acquired[ViaJoined].Load(), Granted: n.acquired[ViaGranted].Load(),
		NotAcquired: n.outcomes[OutcomeTimeout].Load(),
		Canceled:    n.outcomes[OutcomeCanceled].Load(), Failed: n.outcomes[OutcomeFailed].Load(),
		Released: n.released.Load(), Lost: c.state.lostHolds.Load(),
		Renewed: n.renewed.Load(), NotRenewed: n.failed.Load(), Closed: c.ctx.Err() != nil,
	}
}

// Holder describes a holder of a lock, according to the store.
type Holder struct {
	// ID is the holder's id in the store: "CLIENT:NUMBER" for this package and Redisson (see
	// [Hold.HolderID]), or "CLIENT note=NOTE:NUMBER". For permits on Redis and Valkey it is a hash
	// of that, twelve bytes in hexadecimal.
	ID string

	// Client is the id of the holder's client, or empty if ID doesn't contain it. See
	// [WithClientID].
	Client string

	// Note is the holder's note, or empty if there is none. See [HolderNote].
	Note string

	Kind      backend.Kind  // Exclusive for plain, fenced and fair locks
	Count     int           // how many unlocks release it, or how many permits it holds
	Remaining time.Duration // how long the hold lasts without renewal; negative if it never ends

	Kept bool // released, but the lock stays taken for a time (see [AtLeast] and [Client.Once])
}

// LockInfo describes a lock, according to the store.
//
// If the lock has no holders, Kind means something only if it is Permits. The name then belongs to
// a semaphore, and can't be used for another kind of lock. On Redis and Valkey, a semaphore's limit
// is a plain number, so what looks like a semaphore might be another program's key.
type LockInfo struct {
	Name    string
	Kind    backend.Kind // Exclusive for plain, fenced and fair locks; Write for read-write locks
	Holders []Holder     // at most a thousand holders; a writer comes before readers
	More    int          // how many other holders there are
	Line    []string     // at most a thousand ids in the line of a fair lock, in order
	Limit   int          // a semaphore's number of permits, as last set; 0 if unknown
}

// Inspect asks the store who holds the lock with the given name, whatever its kind, or who holds
// the permits of the semaphore with that name. A LockInfo without Holders describes a free lock.
// Inspect returns the same errors as [Locker.IsLocked]. If the store doesn't support this, the
// error wraps [errors.ErrUnsupported].
func (c *Client) Inspect(ctx context.Context, name string) (LockInfo, error) {
	mustBeContext(ctx)
	if name == "" {
		return LockInfo{}, &Error{Op: "inspect", Err: errEmptyName}
	}
	info, err := c.inspect(ctx, name)
	if err != nil {
		return LockInfo{}, &Error{Op: "inspect", Name: name, Err: err}
	}
	return info, nil
}

func (c *Client) inspect(ctx context.Context, name string) (LockInfo, error) {
	if err := c.over(ctx); err != nil {
		return LockInfo{}, err
	}
	if !c.inspects {
		return LockInfo{}, fmt.Errorf("%s can't say who has a lock: %w", c.store.Name,
			errors.ErrUnsupported)
	}
	res, err := steps.Do(ctx, c.store, steps.Of(c.store.Inspector.Inspect),
		backend.InspectRequest{Name: name})
	if err != nil {
		return LockInfo{}, c.stepError(ctx, err)
	}
	return newLockInfo(res), nil
}

func newLockInfo(i backend.Inspection) LockInfo {
	info := LockInfo{Name: i.Name, Kind: i.Kind, More: i.More, Line: i.Line, Limit: i.Limit}
	for _, h := range i.Holders {
		client, note := partsOf(h.Owner)
		info.Holders = append(info.Holders, Holder{
			ID: h.Owner, Client: client, Note: note,
			Kind: h.Kind, Count: h.Count, Remaining: h.Remaining, Kept: h.Kept,
		})
	}
	return info
}

// noteMark separates the client's id from the note in an owner string.
const noteMark = " note="

// partsOf returns the client's id and the note in an owner string. Both are empty unless the string
// is "CLIENT:NUMBER" or "CLIENT note=NOTE:NUMBER".
func partsOf(owner string) (client, note string) {
	i := strings.LastIndexByte(owner, ':')
	if i < 0 {
		return "", ""
	}
	if strings.Trim(owner[i+1:], "0123456789") != "" {
		return "", ""
	}
	client = owner[:i]
	if m := strings.LastIndex(client, noteMark); m >= 0 && isNote(client[m+len(noteMark):]) {
		return client[:m], client[m+len(noteMark):]
	}
	return client, ""
}

// Locks returns an iterator over the store's locks whose names begin with prefix, in no particular
// order. It reads them from the store page by page. It yields each lock that is held throughout the
// iteration, and can also yield locks that are acquired or released meanwhile. The iteration ends
// at the first error, which is ctx's error, [ErrClosed], or an error of the store. If the store
// can't list its locks, the error wraps [errors.ErrUnsupported]. The iteration can take a while,
// but doesn't block the store. On Redis and Valkey it scans every key (SCAN).
func (c *Client) Locks(ctx context.Context, prefix string) iter.Seq2[LockInfo, error] {
	mustBeContext(ctx)
	return func(yield func(LockInfo, error) bool) {
		req := backend.ListRequest{Prefix: prefix, Limit: listPage}
		for more := true; more; more = req.After != "" {
			res, err := c.list(ctx, req)
			if err != nil {
				yield(LockInfo{}, &Error{Op: "list", Name: prefix, Err: err})
				return
			}
			for _, i := range res.Locks {
				if info := newLockInfo(i); info.likely() && !yield(info, nil) {
					return
				}
			}
			req.After = res.Next
		}
	}
}

// likely reports whether i describes a lock, rather than data that only looks like one. On Redis
// and Valkey a hash with one counter and an expiry looks like a lock.
func (i *LockInfo) likely() bool {
	return i.Kind == backend.Permits ||
		slices.ContainsFunc(i.Holders, func(h Holder) bool { return h.Client != "" })
}

// listPage is the number of locks requested at a time.
const listPage = 1000

func (c *Client) list(ctx context.Context, req backend.ListRequest) (backend.ListResult, error) {
	if err := c.over(ctx); err != nil {
		return backend.ListResult{}, err
	}
	if c.store.Lister == nil {
		return backend.ListResult{}, fmt.Errorf("%s can't list its locks: %w", c.store.Name,
			errors.ErrUnsupported)
	}
	// There is no time limit, since a scan can take a long time.
	res, err := steps.DoWithin(ctx, c.store, 0, nil, steps.Of(c.store.Lister.List), req)
	if err != nil {
		return backend.ListResult{}, c.stepError(ctx, err)
	}
	return res, nil
}

// Holder asks the store who holds the lock. It returns the first of [Locker.Holders], or the zero
// Holder if the lock is free.
func (l *Locker) Holder(ctx context.Context) (Holder, error) {
	l.mustBeMade()
	holders, err := l.holders(ctx)
	if err != nil || len(holders) == 0 {
		return Holder{}, l.wrap("holder", err)
	}
	return holders[0], nil
}

// Holders asks the store who holds the lock, in one round trip. For the reading side of an
// [RWLocker] it returns the readers, at most a thousand. For the writing side it returns the
// writer. Readers that got the lock from a writer of this client appear as a single Holder of Kind
// Write, since the store knows only the writer. The errors are the same as for [Locker.IsLocked].
// If the store doesn't support this, the error wraps [errors.ErrUnsupported].
func (l *Locker) Holders(ctx context.Context) ([]Holder, error) {
	l.mustBeMade()
	holders, err := l.holders(ctx)
	return holders, l.wrap("holder", err)
}

func (l *Locker) holders(ctx context.Context) ([]Holder, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	lent := l.lent()
	info, err := l.client.inspect(ctx, l.name)
	if err != nil {
		return nil, err
	}
	if len(info.Holders) > 0 && protocol.Kind(info.Kind).Family() != l.kind.Family() {
		return nil, fmt.Errorf("%w: %s", ErrConflict, info.Kind)
	}
	return slices.DeleteFunc(info.Holders, func(h Holder) bool {
		return protocol.Kind(h.Kind).Shared() != l.kind.Shared() &&
			(lent == nil || h.ID != lent.owner)
	}), nil
}

// Holders asks the store who holds permits, in one round trip. It returns at most a thousand
// holders, and the same errors as [Locker.IsLocked]. If the store doesn't support this, the error
// wraps [errors.ErrUnsupported].
func (s *Semaphore) Holders(ctx context.Context) ([]Holder, error) {
	l := s.mustBeMade()
	holders, err := l.holders(ctx)
	return holders, l.wrap("holder", err)
}

// ForceRelease releases all permits of all holders, and reports whether there were any. It is for
// operators. See [Locker.ForceUnlock].
func (s *Semaphore) ForceRelease(ctx context.Context) (bool, error) {
	l := s.mustBeMade()
	released, err := l.force(ctx)
	return released, l.wrap("forcerelease", err)
}
