package dlock

import (
	"flag"
	"fmt"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// In all tests of this package the tables of each client are checked after each event: whenever its
// mutex is given back.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // it would be measured, too
		afterEvent = checkTables
	}
	goleak.VerifyTestMain(checked{m})
}

// checked fails where the tables of a client contradicted each other in one of the tests.
type checked struct{ *testing.M }

var contradictions atomic.Int64

func (m checked) Run() int {
	code := m.M.Run()
	if n := contradictions.Load(); n > 0 {
		fmt.Printf("the tables of a client contradicted each other %d times\n", n)
		return 1
	}
	return code
}

// checkTables prints where the tables of a client contradict each other, a few times. Those with
// very many locks are looked at now and then.
func checkTables(c *Client) {
	size := len(c.state.alarms.heap)
	for _, table := range c.state.objects {
		size += len(table)
	}
	if size > 64 && rand.IntN(size/32) > 0 {
		return
	}
	if err := c.check(c.now()); err != nil && contradictions.Add(1) <= 3 {
		fmt.Printf("the tables of a client contradict each other: %v\n%s\n", err, debug.Stack())
	}
}

// check returns what speaks against the tables of a client between two events.
func (c *Client) check(now instant) error {
	if err := c.state.alarms.check(); err != nil {
		return err
	}
	if c.state.closed {
		return nil // a closed client only gives back what it has
	}
	for cl := range c.state.troubles {
		if cl.dead {
			return fmt.Errorf("%q: a claim of %s is in trouble, and over", cl.object.name, cl.owner)
		}
	}
	for f, table := range c.state.objects {
		for name, o := range table {
			if o.name != name || o.family != protocol.Family(f) || !o.listed {
				return fmt.Errorf("%q is listed as %q", o.name, name)
			}
			if err := c.checkObject(o, now); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
	}
	return nil
}

// check says whether the first alarm is the one that rings first, and each knows its place.
func (a *alarms) check() error {
	for i, x := range a.heap {
		if x.place != i+1 || x.at < a.heap[max(0, (i-1)/2)].at {
			return fmt.Errorf("alarm %d of %d is out of place", i, len(a.heap))
		}
		if call, ok := x.task.(*acquisition); ok && call.in == nil && call.handed == nil {
			return fmt.Errorf("a call for %q is to be woken, and doesn't wait", call.name)
		}
	}
	return nil
}

func (c *Client) checkObject(o *object, now instant) error {
	if o.alone == nil && o.reading == nil && o.out.first == nil && o.queue == nil && o.line == nil {
		return fmt.Errorf("nobody has it or waits for it")
	}
	seen := make(map[*hold]bool)
	resting := make(map[*claim]int)
	for h := range o.holds() {
		if seen[h] {
			return fmt.Errorf("a hold is there twice")
		}
		seen[h] = true
		resting[h.claim]++
		if err := c.checkHold(o, h, now); err != nil {
			return fmt.Errorf("a hold of %s: %w", h.claim.owner, err)
		}
	}
	for cl, n := range resting {
		if cl.kind.Shared() && cl.more.holds != n {
			return fmt.Errorf("%d holds rest on %s, and it counts %d", n, cl.owner, cl.more.holds)
		}
	}
	if err := o.checkBeside(); err != nil {
		return err
	}
	for q := range o.queues() {
		if err := c.checkQueue(o, q); err != nil {
			return err
		}
	}
	return nil
}

// checkHold says whether a hold that is in the tables is one that can be relied on, and is looked
// after.
func (c *Client) checkHold(o *object, h *hold, now instant) error {
	cl := h.claim
	v := h.variable()
	switch {
	case cl.object != o:
		return fmt.Errorf("it rests on a claim of another lock")
	case h.state != live || cl.dead || cl.leaving:
		return fmt.Errorf("it is over: state %d, dead %v, leaving %v", h.state, cl.dead, cl.leaving)
	case cl.back:
		return fmt.Errorf("it is taken back")
	case h.count < 1 || h.renewedFrom > h.count:
		return fmt.Errorf("it counts %d, and is renewed from %d on", h.count, h.renewedFrom)
	case cl.Until() > cl.Horizon():
		return fmt.Errorf("relied on until %v, and asked for until %v", cl.Until(), cl.Horizon())
	case v != nil && v.hold == nil:
		return fmt.Errorf("its Locker isn't locked")
	case v != nil && v.hold != h && !h.kind.Shared():
		return fmt.Errorf("its Locker is locked for another hold")
	case now < cl.Until() && (cl.alarm.place == 0 || cl.alarm.at > cl.Until()):
		return fmt.Errorf("nobody looks at it before its time is over")
	}
	return nil
}

// checkBeside says whether the holders of a lock may have it beside each other.
func (o *object) checkBeside() error {
	permits := 0
	var before *claim
	for cl := o.out.first; cl != nil; before, cl = cl, cl.more.next {
		if cl.more.prev != before {
			return fmt.Errorf("the list of permits is broken")
		}
		permits += cl.more.many
	}
	if permits != o.out.permits {
		return fmt.Errorf("%d permits are out, and %d are counted", permits, o.out.permits)
	}
	if o.reading == nil {
		return nil
	}
	readers := o.readers()
	switch lent := o.reading.lent; {
	case len(readers) == 0 && o.reading.young == nil && lent == nil:
		return fmt.Errorf("nobody reads")
	case lent != nil && lent.dead:
		return fmt.Errorf("%s is lent, and over", lent.owner)
	case o.reading.young != nil && o.reading.young.dead:
		return fmt.Errorf("%s may be joined, and is over", o.reading.young.owner)
	}
	for _, h := range readers {
		if o.alone != nil && h.claim.owner != o.alone.claim.owner {
			return fmt.Errorf("%s reads while %s writes", h.claim.owner, o.alone.claim.owner)
		}
	}
	return nil
}

// checkQueue says whether a queue counts the calls that are in it, and one of them asks the store,
// or will be woken to do so.
func (c *Client) checkQueue(o *object, q *queue) error {
	var before *acquisition
	length, partners, writers, parked, leads := 0, 0, 0, 0, false
	for a := q.first; a != nil; before, a = a, a.next {
		length++
		switch {
		case a.in != q || a.prev != before:
			return fmt.Errorf("the queue is broken")
		case a.h != nil && (a.h.claim.dead || a.h.claim.back):
			return fmt.Errorf("a call asks for %s, which is over", a.h.claim.owner)
		case a.handed != nil || a.joined:
			return fmt.Errorf("a call waits for what it has")
		case a.trying && !q.placed && a.variable() == nil && q.lead != a:
			// a Locker may be locked by now
			return fmt.Errorf("a call asks that doesn't lead")
		}
		leads = leads || q.lead == a
		if a.partners {
			partners++
		}
		if !a.kind.Shared() {
			writers++
		}
		if a.parked() {
			parked++
		}
	}
	switch a := q.lead; {
	case q.object != o || q.last != before || length == 0:
		return fmt.Errorf("the queue is broken")
	case length != q.length || partners != q.partners || writers != q.writers:
		return fmt.Errorf("%d wait, %d with partners, %d to write, and it is counted %d, %d and %d",
			length, partners, writers, q.length, q.partners, q.writers)
	case q.placed:
	case a == nil && parked < length:
		return fmt.Errorf("%d wait, %d of them for their Locker, and nobody leads", length, parked)
	case a == nil:
	case !leads:
		return fmt.Errorf("a call leads that isn't in the queue")
	case a.parked() || o.exhausts(a) || o.spare > 0:
		// the release of what keeps it out wakes it, or the end of the spare attempt
	case !a.trying && !a.fresh && !q.woken && a.alarm.place == 0 && q.releasing == 0:
		return fmt.Errorf("nobody wakes the call that leads")
	}
	return nil
}
