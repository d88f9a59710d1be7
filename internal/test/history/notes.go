package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A note is what an attempt to write leaves behind that had to wait: those who come after its owner
// don't read while it is there.
type note struct {
	name, owner string
	since       time.Duration // its owner waits, at the latest
	may, must   span          // in which it may be there, and in which it must
}

// notes returns what the steps have left. A note that is left again is another one. What left it and has no answer may
// have acquired the Write as well.
func notes(numbers map[numberKey]*number) (all []*note) {
	for key, n := range numbers {
		for _, s := range n.steps {
			if s.kind != acquireStep || s.side != backend.Write || s.place == 0 || s.ret == 0 || s.result != refused {
				continue
			}
			left := &note{
				name: key.name, owner: key.owner, since: s.ret - s.waited,
				may: span{s.call, s.ret + s.place}, must: span{s.ret, s.call + s.place},
			}
			left.endsWith(n, s)
			all = append(all, left)
		}
	}
	return all
}

// endsWith has a note end with what its owner does after it has left it.
func (left *note) endsWith(n *number, by *step) {
	for _, s := range n.steps {
		ends := s.kind == releaseStep || s.kind == acquireStep && s.side == backend.Write && (s.result == granted || s.open())
		if s == by || !ends {
			continue
		}
		if s.ret == 0 || s.ret > by.call {
			left.must.to = min(left.must.to, s.call)
		}
		if s.call > by.ret && !s.open() {
			left.may.to = min(left.may.to, s.ret)
		}
	}
}

// barred says whether a note may have kept a call from reading; or from writing, if it has asked for nothing itself, but waited behind who wanted
// to read.
func (e *evidence) barred(o *op) bool {
	if o.side != backend.Read && (o.side != backend.Write || e.asked(o)) {
		return false
	}
	return slices.ContainsFunc(e.notes, func(n *note) bool {
		return n.name == o.name && n.may.from <= o.ret && o.call <= n.may.to
	})
}

// asked says whether a call has made an attempt of its own.
func (e *evidence) asked(o *op) bool {
	for _, n := range e.numbers {
		if slices.ContainsFunc(n.steps, func(s *step) bool { return s.op == o && s.kind == acquireStep }) {
			return true
		}
	}
	return false
}

// leastBlink is how exact the times are that are told to a store, and its own, if it counts in milliseconds.
const leastBlink = 5 * time.Millisecond

// overtaken returns an error if somebody began to read who had come after one who waited to write.
func (r *Recorder) overtaken(e *evidence) error {
	blink := max(leastBlink, e.rules.Blink)
	for key, n := range e.numbers {
		if !key.reads || e.rules.Voted {
			continue
		}
		for i, s := range n.steps {
			if s.kind != acquireStep || s.open() || s.result != granted || slices.ContainsFunc(n.steps[:i], (*step).acquires) {
				continue
			}
			if w := e.numbers[numberKey{key.name, key.owner, false}]; w != nil && slices.ContainsFunc(w.steps, (*step).acquires) {
				continue // he reads what he writes
			}
			came := s.call - s.waited
			if s.op != nil {
				came = max(came, s.op.call)
			}
			for _, left := range e.notes {
				if left.name == key.name && left.since+blink < came && left.must.from < s.call && s.ret+blink < left.must.to && !r.wiped(left, s) {
					return fmt.Errorf("%q was read by %s, which had come at %v, before %s, which had waited to write since %v",
						key.name, key.owner, came, left.owner, left.since)
				}
			}
		}
	}
	return nil
}

// wiped says whether the store may have lost a note before a step.
func (r *Recorder) wiped(left *note, by *step) bool {
	return slices.ContainsFunc(r.ops, func(o *op) bool {
		return (o.kind == wipe || o.kind == forceUnlock) && o.call < by.ret && left.may.from < o.ret
	})
}
