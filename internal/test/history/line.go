package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Bounds on the time for which a store grants a Fair lock to the first owner in line. The time
// should be about a second, but each store has its own value.
const (
	leastGrant   = 900 * time.Millisecond
	longestGrant = 5 * time.Second
)

// A stand is an interval in which an owner is in line for a Fair lock, and so can't hold it.
type stand struct {
	*number
	from time.Duration // when the owner got its place; those that arrive later are behind it
	in   span          // when the owner is certainly in line
}

// queues reports whether a step shows that its owner is in line.
func (s *step) queues() bool {
	looks := s.kind == acquireStep && s.place > 0 || s.kind == placesStep
	return s.side == backend.Fair && looks && s.result == refused && s.ret != 0
}

// stands returns the intervals in which the owner of a number was certainly in line. A step s for
// which s.queues() is true shows that the owner is in line, and keeps it there until its place
// expires. There is one exception: if the store grants the lock to the owner, but the owner doesn't
// learn of it, the owner may no longer be in line when the grant ends. If KeepPlaces then restores
// the lost place, the owner comes back ahead of all others. If the owner asks for the lock again
// instead, it may come back as the last in line.
func (e *evidence) stands(n *number) (all []*stand) {
	var last *stand
	for _, s := range n.steps {
		switch {
		case s.result == skipped, s.kind == placesStep && (s.ret == 0 || s.result == unknown):
			continue // the step changes nothing, or at most extends the place
		case !s.queues():
			if last != nil {
				last.in.to = min(last.in.to, s.call)
			}
			if last = nil; s.kind == releaseStep {
				return all
			}
			continue
		}
		kept := e.kept(s)
		switch {
		case last != nil && s.ret < last.in.to:
			last.in.to = max(last.in.to, kept)
			continue
		case last != nil && s.kind == placesStep:
			last = &stand{n, last.from, span{s.ret, kept}}
		default:
			last = &stand{n, s.ret, span{s.ret, kept}}
		}
		all = append(all, last)
	}
	return all
}

// kept returns the end of the period in which a step certainly keeps its owner in line, unless a
// later step of the owner changes that. If faults are possible, the period is short: the owner
// might be granted the lock without learning of it, and no longer be in line when the grant ends.
func (e *evidence) kept(s *step) time.Duration {
	if e.rules.Calm {
		return s.call + s.place
	}
	return s.call + min(s.place, leastGrant)
}

// waited returns the last time at which call o was known to be in line, and whether it was in line
// all the time until then.
func (e *evidence) waited(o *op) (last time.Duration, always bool) {
	end := forever
	for _, s := range o.number.steps {
		if !s.queues() || s.call > o.ret {
			continue
		}
		if s.ret > end {
			return last, false
		}
		last, end = max(last, s.call), e.kept(s)
	}
	return last, true
}

// outOfTurn returns an error if a user acquired a Fair lock while an earlier user was still in
// line.
func (r *Recorder) outOfTurn(e *evidence) error {
	lines := make(map[string][]*stand)
	for key, n := range e.numbers {
		lines[key.name] = append(lines[key.name], e.stands(n)...)
	}
	longest := time.Duration(0)
	for _, line := range lines {
		slices.SortFunc(line, func(a, b *stand) int { return cmp.Compare(a.in.from, b.in.from) })
		for _, s := range line {
			longest = max(longest, s.in.to-s.in.from)
		}
	}
	for _, o := range r.ops {
		if o.kind != acquire || o.side != backend.Fair || o.result != yes || o.number == nil ||
			o.reentry != fresh {
			continue
		}
		waited, always := e.waited(o)
		since := max(o.call, waited)
		line := lines[o.name]
		i, _ := slices.BinarySearchFunc(line, since, func(s *stand, at time.Duration) int {
			return cmp.Compare(s.in.from, at)
		})
		for _, s := range slices.Backward(line[:i]) {
			if s.in.from+longest < o.ret {
				break
			}
			if waits := s.steps[0].op; waits == nil || waits.ret < o.ret {
				continue // the owner no longer waits
			}
			if always && s.number != o.number && s.from < o.call && o.ret < s.in.to &&
				!r.disturbed(s, o) {
				return fmt.Errorf("user %d got %q between %v and %v, having come at %v, before "+
					"%s, who had stood in line since %v",
					o.user, o.name, since, o.ret, o.call, s.steps[0].owner, s.from)
			}
		}
	}
	return nil
}

// disturbed reports whether the lock was force-unlocked, or the store lost the line, between the
// beginning of the stand and the end of the call.
func (r *Recorder) disturbed(s *stand, by *op) bool {
	return slices.ContainsFunc(r.ops, func(o *op) bool {
		switch {
		case o.kind == wipe:
			return s.from < o.ret && o.call < by.ret
		case o.kind == forceUnlock && o.name == by.name:
			return s.in.from < o.ret && o.call < by.ret
		default:
			return false
		}
	})
}
