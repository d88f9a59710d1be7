package quorumbackend

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A debt is a hold that a store might have granted to an attempt that has ended. The session must
// release it there, and sends releases until the store has answered. If the store might still carry
// out an earlier request, the session repeats the release until that request's lease would have
// expired, and once more after that.
type debt struct {
	key
	at      *store
	attempt string
	lease   time.Duration
	late    int       // the number of acquisitions that might still be carried out
	out     int       // the number of unanswered releases that might still be carried out
	ends    time.Time // when every requested lease has expired
	due     time.Time
	pause   time.Duration // before the next release
	paying  bool
}

// debts holds all debts of a session. While there are any, one goroutine sends the releases.
type debts struct {
	list    []*debt
	running bool
	trying  set           // unresponsive stores to which a release is being sent
	added   chan struct{} // of capacity 1
}

const (
	mostDebts      = 4096 // if there are more, the oldest are dropped, and their holds expire
	firstPause     = 50 * time.Millisecond
	longestPause   = 10 * time.Second
	longestSilence = time.Second // between two attempts at a silent store
	payPatience    = time.Second // how long to wait for a store
	lastPatience   = time.Minute // how long a silent store's debt is kept after its leases expire
)

// oweLocked records a debt: a store might have granted a hold that it must now release.
func (s *session) oweLocked(h *hold, at *store, late int) {
	if w := s.lenderLocked(h); w != nil {
		w.barred.add(at) // a late release would also end a later Read in this store
	}
	if s.closed {
		return
	}
	d := &s.debts
	if len(d.list) >= mostDebts {
		d.list = slices.Delete(d.list, 0, 1)
	}
	now := time.Now()
	x := &debt{
		key: h.key, at: at, attempt: h.attempt, lease: h.lease, late: late,
		ends: later(h.ends, now), due: now,
	}
	if h.dying {
		x.out = 1 // an earlier release might still be under way
	}
	d.list = append(d.list, x)
	if d.added == nil {
		d.added = make(chan struct{}, 1)
	}
	if !d.running {
		d.running = true
		s.flying++
		go s.payAll()
		return
	}
	select {
	case d.added <- struct{}{}:
	default:
	}
}

// errOwed is the error of a store that gave its vote to a failed attempt and hasn't confirmed the
// release of that vote yet.
var errOwed = errors.New("an earlier vote of this store is not given back yet")

// owed returns a failure for each store at which an attempt has a debt. It omits stores that might
// still carry out an acquisition of the attempt.
func (s *session) owed(attempt string) (failures []failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.debts.list {
		if d.attempt == attempt && d.late == 0 {
			failures = append(failures, failure{d.at, errOwed})
		}
	}
	return failures
}

// payAll pays debts until there are none.
func (s *session) payAll() {
	defer s.land()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, more := s.payDue()
		if !more {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-s.debts.added:
		case <-s.ctx.Done():
			s.mu.Lock()
			s.debts.running = false
			s.mu.Unlock()
			return
		}
	}
}

// payDue sends releases for the debts that are due. It returns the time at which the next debts are
// due, and whether there are any debts.
func (s *session) payDue() (next time.Time, more bool) {
	s.mu.Lock()
	var due []*debt
	now := time.Now()
	next = now.Add(longestPause)
	trying := &s.debts.trying
	for _, d := range s.debts.list {
		switch {
		case d.paying || trying.has(d.at):
		case later(d.due, d.at.resume).After(now):
			if at := later(d.due, d.at.resume); at.Before(next) {
				next = at
			}
		default:
			d.paying = true
			due = append(due, d)
			if d.at.silence > 0 {
				trying.add(d.at)
			}
		}
	}
	s.debts.running = len(s.debts.list) > 0
	more = s.debts.running
	s.mu.Unlock()
	for _, d := range due {
		s.background(func() {
			ctx, cancel := context.WithTimeout(s.ctx, payPatience)
			defer cancel()
			s.pay1(ctx, d)
		})
	}
	return next, more
}

// pay1 sends one release for a debt.
func (s *session) pay1(ctx context.Context, d *debt) error {
	s.mu.Lock()
	if !slices.Contains(s.debts.list, d) { // it is paid, and its name might be in use again
		s.debts.trying.remove(d.at)
		s.mu.Unlock()
		return nil
	}
	d.out++
	silent := d.at.silence > 0
	s.mu.Unlock()
	sent := time.Now()
	req := backend.ReleaseRequest{Kind: d.kind, Name: d.name, Owner: d.attempt, Lease: d.lease}
	res, err := d.at.session.Release(ctx, req)
	s.mu.Lock()
	defer s.mu.Unlock()
	answered := err == nil || backend.KindOf(err) == backend.Refused
	if answered || backend.KindOf(err) == backend.Retry {
		d.out--
	}
	s.debts.trying.remove(d.at)
	d.at.silence, d.at.resume = 0, time.Time{}
	if !answered {
		d.at.silence = min(max(2*d.pause, firstPause), longestSilence)
		d.at.resume = time.Now().Add(d.at.silence)
	}
	if err == nil && res.Outcome != backend.NotHeld {
		d.late = max(d.late-1, 0)
	}
	// The outcome Left means that the store carried out more than one acquisition.
	left := err == nil && res.Outcome == backend.Left
	// A store that didn't answer for a while might now carry out all earlier requests, in any
	// order. So its first answer isn't final.
	done := answered && !left && (d.late == 0 || !sent.Before(d.ends) && !silent)
	if w := s.holds[key{backend.Write, d.name, d.owner}]; done && d.out == 0 && w != nil &&
		w.attempt == d.attempt && d.kind == backend.Read {
		w.barred.remove(d.at) // no request for that Read is under way anymore
	}
	if done || sent.After(d.ends.Add(max(d.lease, lastPatience))) {
		s.debts.list = slices.DeleteFunc(s.debts.list, func(x *debt) bool { return x == d })
	}
	d.paying = false
	d.pause = min(max(2*d.pause, firstPause), longestPause)
	d.due = time.Now().Add(d.pause)
	switch {
	case left:
		d.due = sent
	case answered && silent:
		d.pause = firstPause
		d.due = time.Now().Add(d.pause)
	}
	if d.due.After(d.ends) && sent.Before(d.ends) {
		d.due = d.ends
	}
	select {
	case s.debts.added <- struct{}{}:
	default:
	}
	return err
}

// pay sends one release to each store where there is a debt for the key. It fails if debts might
// remain in a majority of the stores.
func (s *session) pay(ctx context.Context, k key) error {
	s.mu.Lock()
	var mine []*debt
	for _, d := range s.debts.list {
		if d.key == k {
			mine = append(mine, d)
		}
	}
	s.mu.Unlock()
	if len(mine) == 0 {
		return nil
	}
	debtOf := make([]*debt, len(s.stores))
	r := newRound(s, context.Background(), ctx, func(
		ctx context.Context, st *store,
	) (struct{}, error) {
		return struct{}{}, s.pay1(ctx, debtOf[st.number])
	})
	defer r.leave()
	for _, d := range mine {
		if debtOf[d.at.number] == nil {
			debtOf[d.at.number] = d
			r.ask(d.at)
		}
	}
	for {
		var deadline time.Time
		if r.waiting+len(r.failures) < s.need {
			deadline = r.deadline() // the unpaid stores can't be a majority
		}
		if _, ok := r.next(deadline); !ok {
			break
		}
	}
	if r.waiting+len(r.failures) >= s.need {
		return r.failure()
	}
	return nil
}
