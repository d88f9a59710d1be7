package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A hold is what a user knows of its hold of a lock. It is told again whenever the user knows more.
type hold struct {
	ID    uint64
	Visit uint64 // holds of one visit may be one hold, which was re-entered
	Name  string
	How   string // it was acquired

	Asked time.Duration // when the user asked for it
	In    time.Duration // when the user had it, or later
	Until time.Duration // before the last check that it was still valid; 0 before the first

	Lease     time.Duration
	Fixed     bool // it isn't renewed
	Reentered bool // or may have been
	Lost      bool // and the user was told

	Shared         bool // it is for reading, or of permits
	Permits, Limit int  // of a semaphore: how many, and how many there are as the user said

	Number uint64 // its fencing token; 0: it has none, or nobody has asked

	Read uint64 // the version of the cell that the user has replaced while the hold was valid; 0: none
	Saw  uint64 // the version that was replaced while the user, who reads, had a valid hold; 0: none

	reads []uint64 // all of them
	clash bool     // it was complained about
}

func (h *hold) String() string {
	return fmt.Sprintf("%s by %s, of visit %x (asked %v, in %v, valid at %v, lease %v, fixed %v, reentered %v, shared %v, %d permits of %d, number %d)",
		h.Name, h.How, h.Visit, h.Asked, h.In, h.Until, h.Lease, h.Fixed, h.Reentered, h.Shared, h.Permits, h.Limit, h.Number)
}

// An event is what a user has to tell.
type event struct {
	Hold  *hold  `json:",omitempty"`
	Wrong string `json:",omitempty"` // an answer that should not have been given

	// These are told by processes only.
	Drained bool   `json:",omitempty"` // all users have left
	Leak    string `json:",omitempty"` // goroutines that are left in the end
}

// A checker is told by everybody of their holds, and looks for two at one time.
//
// A hold counts as valid from when its user had it until before its last successful check. That two
// such times don't overlap is what package dlock promises, however slow the machine is. That the
// cell of a lock is never replaced twice by two who could rely on it is the same without clocks.
//
// Where the store lost its data between two acquisitions, they aren't held against each other; but
// who had a lock before must have been told when its lease is over.
type checker struct {
	forced   string        // the name that may be forced, of which no exclusion is claimed
	slack    time.Duration // the store may have granted a lock so long before its user asked for it
	complain func(string)

	mu      sync.Mutex
	ledgers map[string]*ledger
	losses  []*loss
	counts  counts
}

// counts are what a checker has counted.
type counts struct {
	Acquisitions int `json:"acquisitions"` // re-entries apart
	Increments   int `json:"increments"`
	Lost         int `json:"lost"` // holds, as their users were told
	Violations   int `json:"violations"`

	events int
}

// A ledger has the holds of one name in order of In, and what is needed to find them. What is older
// than memory is forgotten.
type ledger struct {
	holds []*hold
	byID  map[uint64]*hold
	read  map[uint64]*hold // who replaced a version
	saw   map[uint64]*hold // who read when it was replaced
}

const memory = time.Minute

// A loss is a time in which the store lost all it had: it ended after from, was dead at the latest at
// dead, and until then it was empty.
type loss struct{ from, dead, until time.Duration }

// maxLosses is how many of them are remembered.
const maxLosses = 100

func newChecker(forced string, slack time.Duration, complain func(string)) *checker {
	return &checker{forced: forced, slack: slack, complain: complain, ledgers: make(map[string]*ledger)}
}

// note takes in what a user has told.
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
		l = &ledger{byID: make(map[uint64]*hold), read: make(map[uint64]*hold), saw: make(map[uint64]*hold)}
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

// lookBack is how many earlier holds one is compared with. All but the last ended long ago.
const lookBack = 256

// judge compares a hold with those near it.
func (c *checker) judge(l *ledger, h *hold) {
	i, _ := slices.BinarySearchFunc(l.holds, h.In, byIn)
	for _, other := range l.holds[max(0, i-lookBack):] {
		if other.In >= h.Until && other.In > h.In {
			break
		}
		if other.Visit == h.Visit {
			continue
		}
		if other.In < h.Until && h.In < other.Until && !(h.Shared && other.Shared) && c.exclude(h, other) {
			c.clash("two had the lock at a time", h, other)
		}
		if h.Number != 0 && other.Number != 0 && (h.Number == other.Number || (other.In < h.Asked) && h.Number < other.Number) {
			c.clash("numbers don't grow", h, other)
		}
	}
}

// judgePermits looks for a time of a hold at which more permits were out than the latest of those who had some were told of.
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
			if other == newest && other.In < other.Until || other.In <= newest.In && newest.In < other.Until && newest.In < newest.Until && c.exclude(newest, other) {
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

// replaced notes that h has replaced a version of the cell.
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

// sawReplaced notes that a version was replaced while h was valid, and for reading.
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

// judgeAlone says whether a hold was relied on for too long.
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
			c.violation("not told that the store lost it between %v and %v: %v", loss.from, loss.dead, h)
		}
	}
}

// exclude says whether two holds must not overlap: not if the store may have lost its data between
// their acquisitions.
func (c *checker) exclude(a, b *hold) bool {
	from, to := min(a.Asked, b.Asked)-c.slack, max(a.In, b.In)
	return !slices.ContainsFunc(c.losses, func(l *loss) bool { return l.from <= to && from <= l.until })
}

func (c *checker) clash(what string, a, b *hold) {
	if a.clash && b.clash {
		return
	}
	a.clash, b.clash = true, true
	c.violation("%s:\n\t%v\n\t%v", what, a, b)
}

const maxComplaints = 10

// violation counts, and complains as long as that helps.
func (c *checker) violation(format string, args ...any) {
	c.counts.Violations++
	if c.counts.Violations <= maxComplaints {
		c.complain("violation: " + fmt.Sprintf(format, args...))
	}
}

// lose notes that the store loses its data while kill and then restart run.
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
