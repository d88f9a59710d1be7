package dlock

import (
	"iter"

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

	alone   *hold    // hold that excludes all others, or nil
	reading *reading // the readers; nil if there are none
	out     out      // the holds of permits
	queue   *queue   // waiting calls without places in the store
	line    *queue   // waiting calls with places in the store
}

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

// isHeldBy reports whether a party has the lock, for reading or otherwise.
func (o *object) isHeldBy(p party) bool {
	return o.alone != nil && o.alone.party == p || o.reader(p) != nil
}

// keep adds a hold to the object. It is for holds of permits, and for holds that exclude all
// others.
func (o *object) keep(h *hold) {
	if h.kind.Many() {
		o.keepPermits(h)
		return
	}
	o.alone = h
}

// tidy removes an object from the client's table if it has no holds and no waiting calls.
func (o *object) tidy(s *state) {
	if o.listed && o.alone == nil && o.reading == nil && o.out.first == nil && o.queue == nil &&
		o.line == nil {
		o.listed = false
		delete(s.objects[o.family], o.name)
	}
}

// queue returns the queue of calls that wait for the claim's lock and have no places in the store.
// It returns nil if there is no such queue.
func (cl *claim) queue(s *state) *queue {
	if o := cl.present(s); o != nil {
		return o.queue
	}
	return nil
}

// present returns the client's object for a claim's lock, or nil if there is none.
func (cl *claim) present(s *state) *object {
	if o := cl.object; o.listed {
		return o
	}
	return s.objects[cl.object.family][cl.object.name]
}

// is reports whether the object is the one for the Locker's lock.
func (o *object) is(l *Locker) bool { return o.name == l.name && o.family == l.kind.Family() }

// A lockKey identifies a lock by its name and family.
type lockKey struct {
	family protocol.Family
	name   string
}

func (o *object) key() lockKey { return lockKey{o.family, o.name} }

// excludes reports whether this client has a hold that excludes the call. It ignores the holds of
// the given party, unless the lock is a semaphore.
func (o *object) excludes(s *state, a *acquisition, but party) bool {
	if o == nil {
		return false
	}
	if a.kind.Many() {
		return o.exhausted(s, a)
	}
	if h := o.alone; h != nil && h.party != but && h.check(s) {
		return true
	}
	return !a.kind.Shared() && o.isRead(s, but)
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
