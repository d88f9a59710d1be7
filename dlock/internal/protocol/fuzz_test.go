package protocol

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/depth"
)

// A world is a holder that does what a client does with a promise, a store, and requests between
// the two that are carried out, answered, left and carried out late in any order.
type world struct {
	Promise
	now         Instant
	count       int     // of the holder's calls
	renewedFrom int     // from which of these on the claim is renewed
	shared      bool    // it reads: its calls are counted here alone, and re-enter at the same time
	step        bool    // one that counts is under way
	kept        Instant // in the store; what a store keeps is over at that instant
	stored      int     // what the store counts
	requests    []*request
}

type request struct {
	op           string
	sent         Instant
	lease, asked time.Duration
	atLeast      time.Duration
	renewed      bool // what a re-entry wants
	done, left   bool
}

var leases = []time.Duration{20 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}

// begin returns the world right after an acquisition.
func begin(lease, grant time.Duration, renewed bool) *world {
	w := &world{count: 1, stored: 1}
	w.Want(lease, renewed)
	if renewed {
		w.renewedFrom = 1
	}
	if grant > 0 {
		w.Given(0, grant, Promised(lease))
		w.kept = grant
		return w
	}
	w.Sent(0, lease)
	w.Granted(0, lease)
	w.kept = lease
	return w
}

// act does one thing, and says whether the hold goes on.
func (w *world) act(op, arg byte) bool {
	switch op % 8 {
	case 0:
		w.now += leases[arg%4] / time.Duration(arg/4%16+1)
	case 1:
		if w.GoesOn() {
			lease, asked := w.Renewal(w.now)
			w.RenewalSent(w.now, asked, asked)
			w.send(&request{op: "renewal", lease: lease, asked: asked})
		}
	case 2:
		switch {
		case w.shared && w.Renewed():
			w.count++
		case w.shared || !w.step:
			r := &request{op: "re-entry", renewed: arg&4 > 0}
			r.lease, r.asked = w.Reentry(w.now, leases[arg%4])
			if arg&8 > 0 && !w.shared {
				r.atLeast = leases[arg/16%4]
			}
			r.asked = max(r.asked, r.atLeast)
			w.StepSent(w.now, r.asked, r.asked)
			w.step = !w.shared
			w.send(r)
		}
	case 3:
		if w.step || w.count == 1 {
			break
		}
		w.count--
		ends := w.count < w.renewedFrom
		if ends {
			w.renewedFrom = 0
		}
		if w.shared {
			if ends {
				w.EndRenewal(w.now)
			}
			break
		}
		r := &request{op: "partial release"}
		r.lease, r.asked = w.PartialRelease(w.now, ends)
		w.StepSent(w.now, r.asked, r.asked)
		w.step = true
		w.send(r)
	case 4:
		if w.shared {
			break // only who has a lock for itself can have it stay taken
		}
		w.Lengthens(leases[arg%4])
		w.Keep(w.now+leases[arg%4], w.Confirmed(0))
	default:
		if len(w.requests) == 0 {
			return true
		}
		r := w.requests[int(arg)%len(w.requests)]
		switch {
		case op%8 == 5:
			w.carryOut(r)
		case r.left:
		case op%8 == 6:
			return w.answer(r)
		default:
			w.leave(r)
		}
	}
	return w.now < w.Until()
}

func (w *world) send(r *request) {
	r.sent = w.now
	w.requests = append(w.requests, r)
}

// carryOut has the store do what a request asks for, once.
func (w *world) carryOut(r *request) {
	if r.done || w.now >= w.kept {
		r.done = true
		return
	}
	r.done = true
	switch {
	case w.shared:
	case r.op == "re-entry":
		w.stored++
	case r.op == "partial release":
		w.stored--
	}
	before := w.kept
	w.kept = w.now + r.asked
	if w.shared {
		// renewals shorten nothing that is read, and are re-entries there
		w.kept = max(before, w.kept)
	}
}

// forget drops a request that was carried out and is over.
func (w *world) forget(r *request) {
	for i, x := range w.requests {
		if x == r {
			w.requests = append(w.requests[:i], w.requests[i+1:]...)
			return
		}
	}
}

// answer has a request carried out, unless it was, and answered.
func (w *world) answer(r *request) bool {
	w.carryOut(r)
	w.forget(r)
	if r.op == "renewal" {
		w.RenewalOver()
		if w.now >= w.Until() {
			return false
		}
		w.RenewalGranted(r.sent, r.lease)
		return true
	}
	w.step = false
	w.StepOver()
	if w.now >= w.Until() {
		return false
	}
	if r.op == "re-entry" {
		w.count++
		if !w.Renewed() && r.renewed {
			w.Renew()
			w.renewedFrom = w.count
		}
		if r.atLeast > 0 {
			w.Keep(w.now+r.atLeast, r.sent)
		}
	}
	w.StepGranted(r.sent, r.lease, r.asked)
	return true
}

// leave has nobody wait for an answer any more.
func (w *world) leave(r *request) {
	r.left = true
	if r.op == "renewal" {
		return
	}
	w.step = false
	w.StepOver()
	if w.shared {
		return
	}
	w.Unanswered(r.asked)
	if r.op == "re-entry" {
		w.Stray()
	}
}

// check returns what speaks against what the holder believes. It looks at each request that may yet
// be carried out as if that were now: the same then holds later, and in any order.
func (w *world) check() error {
	until := w.Until()
	switch {
	case w.now >= until:
		return nil
	case w.kept < until:
		return fmt.Errorf("at %v: relied on until %v, and kept until %v", w.now, until, w.kept)
	case w.Horizon() < until:
		return fmt.Errorf("relied on until %v, and a take-back would end at %v", until, w.Horizon())
	case !w.shared && w.stored < w.count:
		return fmt.Errorf("at %v: counted %d times, and %d in the store", w.now, w.count, w.stored)
	}
	for _, r := range w.requests {
		if !r.done && !w.shared && w.now+r.asked < until {
			return fmt.Errorf("at %v: relied on until %v, and a %s of %v may come that leaves %v",
				w.now, until, r.op, r.sent, r.asked)
		}
	}
	return nil
}

// run lets a holder and a store do what the bytes say, two for each thing.
func run(what []byte) error {
	if len(what) == 0 {
		return nil
	}
	how := what[0]
	lease, grant := leases[how%4], time.Duration(0)
	if how&72 == 8 { // readers don't stand in line
		grant = leases[how/16%4]
	}
	w := begin(lease, grant, how&4 > 0)
	w.shared = how&64 > 0
	for i := 1; i+1 < len(what); i += 2 {
		goesOn := w.act(what[i], what[i+1])
		if err := w.check(); err != nil {
			return fmt.Errorf("after %d things: %w", i/2+1, err)
		}
		if !goesOn {
			return nil
		}
	}
	return nil
}

// A holder relies on no more than what a store keeps, whatever becomes of the requests: each may be
// carried out late, also after its caller has left it, and in any order.
func FuzzPromise(f *testing.F) {
	f.Add([]byte{5, 1, 0, 2, 3, 6, 1, 5, 0})
	f.Add([]byte{5, 2, 0, 6, 0, 1, 0, 3, 0, 6, 1, 5, 0})
	f.Fuzz(func(t *testing.T, what []byte) {
		if err := run(what); err != nil {
			t.Error(err)
		}
	})
}

// The same with random things, as many as take a moment.
func TestAHolderReliesOnNoMoreThanTheStoreKeeps(t *testing.T) {
	for seed := range uint64(depth.Of(50_000, 200_000, 5_000_000)) {
		r := rand.New(rand.NewPCG(seed, 0))
		what := make([]byte, 61)
		for i := range what {
			what[i] = byte(r.IntN(256))
		}
		if err := run(what); err != nil {
			t.Fatalf("seed %d: %v\n%v", seed, err, what)
		}
	}
}
