package dlock

import (
	"iter"

	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// An object is one lock, as this client sees it, with its holds and its waiting calls. The client's
// table lists it while it has a hold or a waiting call.
type object struct {
	name   string
	family protocol.Family
	listed bool // in the client's table; a claim that has ended may refer to an unlisted object

	alone   *hold    // the hold that excludes all others; nil if there is none
	reading *reading // the readers; nil if there are none
	out     out      // the holds of permits
	queue   *queue   // calls without places in the store; nil if there are none
	line    *queue   // calls with places in the store; nil if there are none
}

// objectLocked returns the object of a lock, or nil.
func (c *Client) objectLocked(kind protocol.Kind, name string) *object {
	return c.objects[kind.Family()][name]
}

// openLocked returns the object that the client's table has for o's lock. If there is none, it puts
// o into the table, and returns o.
func (c *Client) openLocked(o *object) *object {
	if listed := c.objects[o.family][o.name]; listed != nil {
		return listed
	}
	o.listed = true
	c.objects[o.family][o.name] = o
	return o
}

// keep records a hold that excludes all others, or a hold of permits.
func (o *object) keep(h *hold) {
	if h.kind.Many() {
		o.keepPermits(h)
		return
	}
	o.alone = h
}

// tidyLocked removes an object from the client's table if it has no holds and no waiting calls.
func (c *Client) tidyLocked(o *object) {
	if o.listed && o.alone == nil && o.reading == nil && o.out.first == nil && o.queue == nil &&
		o.line == nil {
		o.listed = false
		delete(c.objects[o.family], o.name)
	}
}

// queueLocked returns the queue of calls that wait for a claim's lock without places, or nil.
func (c *Client) queueLocked(cl *claim) *queue {
	if o := c.presentLocked(cl); o != nil {
		return o.queue
	}
	return nil
}

// presentLocked returns the object that the client's table has for a claim's lock, or nil.
func (c *Client) presentLocked(cl *claim) *object {
	if o := cl.object; o.listed {
		return o
	}
	return c.objects[cl.object.family][cl.object.name]
}

// is reports whether o represents the lock of a Locker.
func (o *object) is(l *Locker) bool { return o.name == l.name && o.family == l.kind.Family() }

// A lockKey identifies a lock by its name and family.
type lockKey struct {
	family protocol.Family
	name   string
}

func (o *object) key() lockKey { return lockKey{o.family, o.name} }

// heldLocked reports whether this client holds the lock in a way that excludes call a. Holds of the
// party but don't count, unless they are permits.
func (c *Client) heldLocked(o *object, a *acquisition, but party) bool {
	if o == nil {
		return false
	}
	if a.kind.Many() {
		return c.exhaustedLocked(o, a)
	}
	if h := o.alone; h != nil && h.party != but && c.checkLocked(h) {
		return true
	}
	return !a.kind.Shared() && c.readLocked(o, but)
}

// waitsFor returns a pointer to the field that holds the queue of calls for a kind.
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
