package dlock

import (
	"iter"
	"maps"
	"slices"

	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// An object is one lock as this client sees it: the client's holds and its waiting calls. While
// there are any, the object is in the client's table. A claim that has ended might still refer to
// an object that is no longer in the table.
type object struct {
	name   string
	family protocol.Family
	listed bool  // whether the client's table contains it
	marks  marks // what settle has to do
	spare  int32 // the number of spare attempts: see endSpare

	alone   *hold    // hold that excludes all others, or nil
	reading *reading // the readers; nil if there are none
	out     out      // the holds of permits
	queue   *queue   // waiting calls without places in the store
	line    *queue   // waiting calls with places in the store
}

// A lockKey identifies a lock by its name and family.
type lockKey struct {
	family protocol.Family
	name   string
}

func (o *object) key() lockKey { return lockKey{o.family, o.name} }

func (l *Locker) key() lockKey { return lockKey{l.kind.Family(), l.name} }

// object returns the client's object for a lock, or nil if there is none.
func (s *state) object(kind protocol.Kind, name string) *object {
	return s.objects[kind.Family()][name]
}

// open returns the client's object for o's lock. If there is none, it adds o to the client's table,
// and returns o.
func (s *state) open(o *object) *object {
	if listed := s.objects[o.family][o.name]; listed != nil {
		return listed
	}
	o.listed = true
	s.objects[o.family][o.name] = o
	return o
}

// present returns the client's object for a claim's lock, or nil if there is none.
func (cl *claim) present(s *state) *object {
	if o := cl.object; o.listed {
		return o
	}
	return s.objects[cl.object.family][cl.object.name]
}

// queue returns the queue of calls that wait for the claim's lock and have no places in the store.
// It returns nil if there is no such queue.
func (cl *claim) queue(s *state) *queue {
	if o := cl.present(s); o != nil {
		return o.queue
	}
	return nil
}

// tidy removes an object from the client's table if it has no holds and no waiting calls.
func (o *object) tidy(s *state) {
	if o.listed && o.alone == nil && o.reading == nil && o.out.first == nil && o.queue == nil &&
		o.line == nil {
		o.listed = false
		delete(s.objects[o.family], o.name)
	}
}

// is reports whether the object is the one for the Locker's lock.
func (o *object) is(l *Locker) bool { return o.name == l.name && o.family == l.kind.Family() }

// keep adds a hold to the object. It is for holds of permits, and for holds that exclude all
// others.
func (o *object) keep(h *hold) {
	if h.kind.Many() {
		o.keepPermits(h)
		return
	}
	o.alone = h
}

// waitsFor returns a pointer to the object's queue for calls that want a lock of the given kind.
func (o *object) waitsFor(kind protocol.Kind) **queue {
	if kind.Placed() {
		return &o.line
	}
	return &o.queue
}

// queues returns the object's queues of waiting calls.
func (o *object) queues() iter.Seq[*queue] {
	return func(yield func(*queue) bool) {
		if o.queue != nil && !yield(o.queue) {
			return
		}
		if o.line != nil {
			yield(o.line)
		}
	}
}

// holds returns all holds on a lock.
func (o *object) holds() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		if o.alone != nil && !yield(o.alone) {
			return
		}
		for _, h := range o.readers() {
			if !yield(h) {
				return
			}
		}
		for h := range o.permitted() {
			if !yield(h) {
				return
			}
		}
	}
}

// holds returns all holds of this client.
func (s *state) holds() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for _, table := range s.objects {
			for _, o := range table {
				for h := range o.holds() {
					if !yield(h) {
						return
					}
				}
			}
		}
	}
}

// isHeldBy reports whether a party has the lock, for reading or otherwise.
func (o *object) isHeldBy(p party) bool {
	return o.alone != nil && o.alone.party == p || o.reader(p) != nil
}

// passing returns the claim that this client may hand over, or nil. The claim belongs to an
// exclusive holder, or is a write lock that is lent to readers.
func (o *object) passing() *claim {
	switch {
	case o == nil:
		return nil
	case o.alone != nil:
		return o.alone.claim
	case o.reading != nil:
		return o.reading.lent
	default:
		return nil
	}
}

// reading holds the readers of this client.
type reading struct {
	holds map[party]*hold // the latest hold of each party
	lent  *claim          // a write lock's claim, while it is lent to readers; otherwise nil
	older []*hold         // the parties' earlier holds, oldest first
	young *claim          // latest claim, which new readers may join
}

// readers returns the holds of all readers.
func (o *object) readers() []*hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return slices.AppendSeq(slices.Clone(o.reading.older), maps.Values(o.reading.holds))
}

// reader returns a party's latest read hold, or nil.
func (o *object) reader(p party) *hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return o.reading.holds[p]
}

// Marks say what has happened to a lock since the mutex was locked.
type marks uint8

const (
	markChanged  marks = 1 << iota // calls or holds have come or gone
	markFree                       // the lock may be free, so the lead tries again
	markJoinable                   // waiting readers may join the youngest claim for reading
	markEntered                    // a party got the lock, so its other calls can re-enter it
	markUnlocked                   // a Locker was unlocked, so its plain calls can have places again
	markLost                       // a claim was lost, and the store may have granted another
)

// mark records what has happened to a lock.
func (o *object) mark(s *state, m marks) {
	if o.marks == 0 {
		s.marked = append(s.marked, o)
	}
	o.marks |= m
}

// mark records what has happened to a claim's lock.
func (cl *claim) mark(s *state, m marks) {
	if o := cl.present(s); o != nil {
		o.mark(s, m)
	}
}
