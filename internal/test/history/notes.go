package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A note is the store's record of a writer that waits. Readers that arrive after the writer must
// wait while the note exists.
type note struct {
	name, owner string
	since       time.Duration // the writer began to wait no later than this
	may, must   span          // when the note may exist, and when it must exist
}

// notes returns the notes that steps left behind in the store. A renewed note counts as a new one.
// A step that got no answer doesn't count, since it may have acquired the lock.
func notes(numbers map[numberKey]*number) (all []*note) {
	for key, n := range numbers {
		for _, s := range n.steps {
			if s.kind != acquireStep || s.side != backend.Write || s.place == 0 || s.ret == 0 ||
				s.result != refused {
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

// endsWith shortens the intervals of a note if later steps of its owner end the note. The parameter
// by is the step that created the note.
func (left *note) endsWith(n *number, by *step) {
	for _, s := range n.steps {
		ends := s.kind == releaseStep ||
			s.kind == acquireStep && s.side == backend.Write && (s.result == granted || s.open())
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

// barred reports whether a note may have kept call o from acquiring the lock. A note affects
// readers. It also affects a writer that waited behind such a reader, and so made no attempt
// itself.
func (e *evidence) barred(o *op) bool {
	if o.side != backend.Read && (o.side != backend.Write || e.asked(o)) {
		return false
	}
	return slices.ContainsFunc(e.notes, func(n *note) bool {
		return n.name == o.name && n.may.from <= o.ret && o.call <= n.may.to
	})
}

// asked reports whether call o made an attempt itself.
func (e *evidence) asked(o *op) bool {
	for _, n := range e.numbers {
		if slices.ContainsFunc(n.steps, func(s *step) bool {
			return s.op == o && s.kind == acquireStep
		}) {
			return true
		}
	}
	return false
}

// leastBlink is how far apart two arrivals must be, at least, for their order to be known. The
// order of closer ones is uncertain, because stores return and receive times in milliseconds.
// Rules.Blink can increase this minimum.
const leastBlink = 5 * time.Millisecond

// overtaken returns an error if a reader got ahead of a writer that had begun to wait before the
// reader arrived.
func (r *Recorder) overtaken(e *evidence) error {
	blink := max(leastBlink, e.rules.Blink)
	for key, n := range e.numbers {
		if !key.reads || e.rules.Voted {
			continue
		}
		for i, s := range n.steps {
			if s.kind != acquireStep || s.open() || s.result != granted ||
				slices.ContainsFunc(n.steps[:i], (*step).acquires) {
				continue
			}
			if w := e.numbers[numberKey{key.name, key.owner, false}]; w != nil &&
				slices.ContainsFunc(w.steps, (*step).acquires) {
				continue // the owner reads under its own Write
			}
			came := s.call - s.waited
			if s.op != nil {
				came = max(came, s.op.call)
			}
			for _, left := range e.notes {
				if left.name == key.name && left.since+blink < came && left.must.from < s.call &&
					s.ret+blink < left.must.to && !r.wiped(left, s) {
					return fmt.Errorf("%q was read by %s, which had come at %v, before %s, which "+
						"had waited to write since %v",
						key.name, key.owner, came, left.owner, left.since)
				}
			}
		}
	}
	return nil
}

// wiped reports whether a note may have been lost before a step, because the lock was
// force-unlocked or the store lost its data.
func (r *Recorder) wiped(left *note, by *step) bool {
	return slices.ContainsFunc(r.ops, func(o *op) bool {
		return (o.kind == wipe || o.kind == forceUnlock) && o.call < by.ret && left.may.from < o.ret
	})
}
