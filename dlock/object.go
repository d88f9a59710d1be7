package dlock

import (
	"iter"

	"github.com/seed951563bd/distsync/backend"
)

// An object is one lock, as this client sees it: who has it here, and who waits for it. There is one
// record for each while there is any of these.
type object struct {
	name   string
	family family
	listed bool // in the client's table: a claim that is over may refer to one that isn't any more

	alone   *hold    // whoever has it for himself
	reading *reading // whoever reads; nil if nobody does
	out     out      // who has permits
	queue   *queue   // whoever waits; nil if nobody does
	line    *queue   // whoever waits with a place in the store; nil if nobody does
}

// A family is the kinds of lock that are ways to one object.
type family uint8

const (
	locks      family = iota // plain, fenced and fair
	readWrites               // their two sides
	semaphores
	families
)

// representative returns a kind of the family, for what is asked about any of them.
func (f family) representative() backend.Kind {
	switch f {
	case readWrites:
		return backend.Write
	case semaphores:
		return backend.Permits
	default:
		return backend.Exclusive
	}
}

// A rule is what is special about a kind of lock. Nothing else asks which kind a lock is of.
type rule struct {
	family   family
	shared   bool // any number may hold it, and they share claims; their re-entries are counted here alone
	many     bool // any number may hold it, each with a claim of his own, which nobody re-enters
	passes   bool // from goroutine to goroutine without a word to the store
	notes    bool // who waits leaves a note in the store, for which others hold back
	numbered bool // its claims have fencing tokens
	asserted bool // also a fixed lease is renewed: others may shorten what the store keeps
	placed   bool // who waits has a place in the store, which gives the lock to the first
}

var rules = [...]rule{
	backend.Exclusive: {family: locks, passes: true},
	backend.Fenced:    {family: locks, numbered: true},
	backend.Read:      {family: readWrites, shared: true, asserted: true},
	backend.Write:     {family: readWrites, passes: true, notes: true},
	backend.Fair:      {family: locks, placed: true},
	backend.Permits:   {family: semaphores, many: true, passes: true},
}

// objectLocked returns the record of a lock, or nil.
func (c *Client) objectLocked(kind backend.Kind, name string) *object {
	return c.objects[rules[kind].family][name]
}

// openLocked returns the record of a lock. If there is none it becomes the one given.
func (c *Client) openLocked(o *object) *object {
	if listed := c.objects[o.family][o.name]; listed != nil {
		return listed
	}
	o.listed = true
	c.objects[o.family][o.name] = o
	return o
}

// keep notes who has the lock for himself, or permits.
func (o *object) keep(h *hold) {
	if rules[h.kind].many {
		o.keepPermits(h)
		return
	}
	o.alone = h
}

// tidyLocked drops an object that nobody has or waits for.
func (c *Client) tidyLocked(o *object) {
	if o.listed && o.alone == nil && o.reading == nil && o.out.first == nil && o.queue == nil && o.line == nil {
		o.listed = false
		delete(c.objects[o.family], o.name)
	}
}

// queueLocked returns who waits for what was claimed, or nil.
func (c *Client) queueLocked(cl *claim) *queue {
	if o := c.presentLocked(cl); o != nil {
		return o.queue
	}
	return nil
}

// presentLocked returns the record of what was claimed, or nil.
func (c *Client) presentLocked(cl *claim) *object {
	if o := cl.object; o.listed {
		return o
	}
	return c.objects[cl.object.family][cl.object.name]
}

// is says whether a Locker is for that object.
func (o *object) is(l *Locker) bool { return o.name == l.name && o.family == rules[l.kind].family }

// A lockKey is the name of a lock, among all families.
type lockKey struct {
	family family
	name   string
}

func (o *object) key() lockKey { return lockKey{o.family, o.name} }

// heldLocked says whether anybody but that party validly has, in this client, what keeps a call from the lock.
func (c *Client) heldLocked(o *object, a *acquisition, but party) bool {
	if o == nil {
		return false
	}
	if rules[a.kind].many {
		return c.exhaustedLocked(o, a)
	}
	if h := o.alone; h != nil && h.party != but && c.checkLocked(h) {
		return true
	}
	return !rules[a.kind].shared && c.readLocked(o, but)
}

// waitsFor returns the queue for a lock of that kind.
func (o *object) waitsFor(kind backend.Kind) **queue {
	if rules[kind].placed {
		return &o.line
	}
	return &o.queue
}

// queues returns those in which somebody waits.
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
