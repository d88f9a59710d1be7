package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A hold is a user's report on a lock that it holds. The user reports a hold again whenever it
// learns more about it.
type hold struct {
	ID    uint64
	Visit uint64 // holds of the same visit can be re-entries of one hold
	Name  string
	How   string // the call that acquired it

	Asked time.Duration // when the user called
	In    time.Duration // when the user noticed the acquisition
	Until time.Duration // start of the last successful check; 0 if there was none

	Lease     time.Duration
	Fixed     bool // it has a fixed lease
	Reentered bool // it might have been re-entered
	Lost      bool // it was lost, and the user was notified

	Shared         bool // a read hold or a hold of permits, which others may share
	Permits, Limit int  // for a semaphore: permits held, and limit passed by the user

	Number uint64 // fencing token; 0 if it has none, or the user didn't ask for it

	// Read is the version in the lock's cell (see cells) that this user read, and then replaced
	// while the hold was valid; 0 if none.
	Read uint64
	// Saw is the version that another user replaced while this user had a valid read hold; 0 if
	// none.
	Saw uint64

	reads []uint64 // all reported versions
	clash bool     // a violation that involves this hold was reported
}

func (h *hold) String() string {
	return fmt.Sprintf("%s by %s, of visit %x (asked %v, in %v, valid at %v, lease %v, fixed %v, "+
		"reentered %v, shared %v, %d permits of %d, number %d)",
		h.Name, h.How, h.Visit, h.Asked, h.In, h.Until, h.Lease, h.Fixed, h.Reentered, h.Shared,
		h.Permits, h.Limit, h.Number)
}

// An event is a user's report.
type event struct {
	Hold  *hold  `json:",omitempty"`
	Wrong string `json:",omitempty"` // a violation, such as a wrong answer; empty if there is none

	// The fields below are used only by child processes.
	Drained bool   `json:",omitempty"` // all users have finished
	Leak    string `json:",omitempty"` // goroutines left after the end
}

// A checker receives the holds of all users, and looks for holds that overlap.
//
// A hold counts as valid from the time at which its user noticed the acquisition until the start of
// its last successful check. Package dlock promises that two such intervals don't overlap, however
// slow the machine is. The checker also checks this without clocks. Each lock guards a cell, which
// contains a version, and two users that could rely on the lock must not both replace the same
// version.
//
// If the store might have lost its data between two acquisitions, their holds are allowed to
// overlap. But the earlier holders must have been notified when their leases expired.
type checker struct {
	forced   string        // the lock that users force-unlock; its holds can overlap
	slack    time.Duration // a hold can begin in the store up to this long before the user's call
	complain func(string)

	mu      sync.Mutex
	ledgers map[string]*ledger
	losses  []*loss
	counts  counts
}

// counts are the counters of a checker.
type counts struct {
	Acquisitions int `json:"acquisitions"` // without re-entries
	Increments   int `json:"increments"`
	Lost         int `json:"lost"` // holds whose users were notified of a loss
	Violations   int `json:"violations"`

	events int
}

// A ledger contains the holds of one lock, sorted by In, and indexes to find them. It drops holds
// that are older than the constant memory.
type ledger struct {
	holds []*hold
	byID  map[uint64]*hold
	read  map[uint64]*hold // the hold that replaced a version
	saw   map[uint64]*hold // the read hold during which a version was replaced
}

const memory = time.Minute

// A loss is an outage in which the store lost all its data. The field from is a time before the
// store stopped, and dead is a time after that. The field until is a time when the store was
// running again, without its data.
type loss struct{ from, dead, until time.Duration }

// maxLosses is the number of losses that the checker remembers.
const maxLosses = 100

func newChecker(forced string, slack time.Duration, complain func(string)) *checker {
	return &checker{
		forced: forced, slack: slack, complain: complain, ledgers: make(map[string]*ledger),
	}
}

// note records a user's report, and checks it.
func (c *checker) note(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.events++
	if e.Wrong != "" {
		c.violation("%s", e.Wrong)
	}
	if e.Hold != nil {
		c.noteHold(e.Hold)
	}
}

func (c *checker) noteHold(told *hold) {
	l := c.ledgers[told.Name]
	if l == nil {
		l = &ledger{
			byID: make(map[uint64]*hold), read: make(map[uint64]*hold), saw: make(map[uint64]*hold),
		}
		c.ledgers[told.Name] = l
	}
	h := l.byID[told.ID]
	if h == nil {
		h = new(*told)
		l.add(h)
		if !h.Reentered {
			c.counts.Acquisitions++
		}
	}
	h.Until, h.Reentered = max(h.Until, told.Until), h.Reentered || told.Reentered
	if told.Lost && !h.Lost {
		h.Lost = true
		c.counts.Lost++
	}
	c.judgeAlone(h)
	if h.Name != c.forced {
		c.judge(l, h)
		c.judgePermits(l, h)
		c.replaced(l, h, told.Read)
		c.sawReplaced(l, h, told.Saw)
	}
	l.forget(h.In - memory)
}

func (l *ledger) add(h *hold) {
	i, _ := slices.BinarySearchFunc(l.holds, h.In, byIn)
	l.holds = slices.Insert(l.holds, i, h)
	l.byID[h.ID] = h
}

func byIn(h *hold, in time.Duration) int { return cmp.Compare(h.In, in) }

func (l *ledger) forget(before time.Duration) {
	n, _ := slices.BinarySearchFunc(l.holds, before, byIn)
	for _, h := range l.holds[:n] {
		delete(l.byID, h.ID)
		for _, version := range h.reads {
			delete(l.read, version)
			delete(l.saw, version)
		}
	}
	l.holds = slices.Delete(l.holds, 0, n)
}

// lookBack is the number of earlier holds with which a hold is compared. Older holds ended long
// ago.
const lookBack = 256

// judge compares a hold with the holds around it.
func (c *checker) judge(l *ledger, h *hold) {
	i, _ := slices.BinarySearchFunc(l.holds, h.In, byIn)
	for _, other := range l.holds[max(0, i-lookBack):] {
		if other.In >= h.Until && other.In > h.In {
			break
		}
		if other.Visit == h.Visit {
			continue
		}
		if other.In < h.Until && h.In < other.Until && !(h.Shared && other.Shared) &&
			c.exclude(h, other) {
			c.clash("two had the lock at a time", h, other)
		}
		if h.Number != 0 && other.Number != 0 &&
			(h.Number == other.Number || (other.In < h.Asked) && h.Number < other.Number) {
			c.clash("numbers don't grow", h, other)
		}
	}
}

// judgePermits reports a violation if, at some time during h, users held more permits than the
// limit allows. The limit is the highest one that any of these users specified.
func (c *checker) judgePermits(l *ledger, h *hold) {
	if h.Permits == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(l.holds, h.In, byIn)
	for j, newest := range l.holds[i:] {
		if newest.In >= h.Until && newest != h {
			break
		}
		out, limit, with := 0, 0, []*hold(nil)
		for _, other := range l.holds[max(0, i-lookBack) : i+j+1] {
			if other == newest && other.In < other.Until ||
				other.In <= newest.In && newest.In < other.Until && newest.In < newest.Until &&
					c.exclude(newest, other) {
				out, limit, with = out+other.Permits, max(limit, other.Limit), append(with, other)
			}
		}
		if out > limit && !slices.ContainsFunc(with, func(h *hold) bool { return h.clash }) {
			text := ""
			for _, other := range with {
				other.clash = true
				text += fmt.Sprintf("\n\t%v", other)
			}
			c.violation("%d permits of %d were out at a time:%s", out, limit, text)
		}
	}
}

// replaced records that h replaced a version of the cell.
func (c *checker) replaced(l *ledger, h *hold, version uint64) {
	if version == 0 {
		return
	}
	c.counts.Increments++
	if other := l.read[version]; other != nil && other != h && c.exclude(h, other) {
		c.clash("an increment was lost", h, other)
	}
	if reader := l.saw[version]; reader != nil && reader.Visit != h.Visit && c.exclude(h, reader) {
		c.clash("what somebody read was replaced", h, reader)
	}
	l.read[version] = h
	h.reads = append(h.reads, version)
}

// sawReplaced records that the read hold h was valid while a version was replaced.
func (c *checker) sawReplaced(l *ledger, h *hold, version uint64) {
	if version == 0 {
		return
	}
	if writer := l.read[version]; writer != nil && writer.Visit != h.Visit && c.exclude(h, writer) {
		c.clash("what somebody read was replaced", h, writer)
	}
	l.saw[version] = h
	h.reads = append(h.reads, version)
}

// judgeAlone reports a violation if a user relied on a hold after its fixed lease had ended, or for
// more than a lease after the store had lost its data.
func (c *checker) judgeAlone(h *hold) {
	if h.Reentered || h.clash {
		return
	}
	if h.Fixed && h.Until > h.In+h.Lease {
		h.clash = true
		c.violation("a fixed lease was outlived: %v", h)
	}
	for _, loss := range c.losses {
		if h.In < loss.from && loss.dead < h.Until-h.Lease {
			h.clash = true
			c.violation("not told that the store lost it between %v and %v: %v", loss.from,
				loss.dead, h)
		}
	}
}

// exclude reports whether two holds must not overlap. An overlap is allowed if the store might have
// lost its data between their acquisitions.
func (c *checker) exclude(a, b *hold) bool {
	from, to := min(a.Asked, b.Asked)-c.slack, max(a.In, b.In)
	return !slices.ContainsFunc(c.losses, func(l *loss) bool {
		return l.from <= to && from <= l.until
	})
}

func (c *checker) clash(what string, a, b *hold) {
	if a.clash && b.clash {
		return
	}
	a.clash, b.clash = true, true
	c.violation("%s:\n\t%v\n\t%v", what, a, b)
}

const maxComplaints = 10

// violation counts a violation, and prints it if it is one of the first few.
func (c *checker) violation(format string, args ...any) {
	c.counts.Violations++
	if c.counts.Violations <= maxComplaints {
		c.complain("violation: " + fmt.Sprintf(format, args...))
	}
}

// lose makes the store lose its data, by calling kill and then restart, and records the loss.
func (c *checker) lose(kill, restart func()) {
	l := &loss{from: now(), dead: math.MaxInt64, until: math.MaxInt64}
	c.mu.Lock()
	c.losses = append(c.losses[max(0, len(c.losses)-maxLosses):], l)
	c.mu.Unlock()
	kill()
	c.mu.Lock()
	l.dead = now()
	c.mu.Unlock()
	restart()
	c.mu.Lock()
	l.until = now()
	c.mu.Unlock()
}

func (c *checker) counted() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}
