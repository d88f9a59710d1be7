package history

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	testLease = 10 * time.Second
	sec       = time.Second
)

// A past is a history made by hand.
type past struct {
	r Recorder
}

func (p *past) add(
	k kind, user int, from, to time.Duration, res result, change ...func(*op),
) *past {
	o := &op{
		kind: k, name: "a", user: user, client: user / 2, call: from, ret: to, result: res,
		lease: testLease, count: 1, waits: true,
	}
	if k == unlock || k == check || k == isHeld || k == holdCount {
		o.held = 1
	}
	for _, c := range change {
		c(o)
	}
	p.r.ops = append(p.r.ops, o)
	if k == acquire && res == yes && o.id == 0 {
		p.step(acquireStep, o, granted)
	}
	return p
}

// step adds the request of a call to the store, which takes nearly all of its time.
func (p *past) step(k stepKind, o *op, res stepResult) {
	p.r.steps = append(p.r.steps, &step{
		kind: k, op: o, side: o.side, name: o.name, owner: o.owner(), lease: o.lease,
		reentry: o.held > 0,
		token:   o.token, permits: o.permits, call: o.call + 3, ret: o.ret - 1, result: res,
	})
}

// owner returns the name by which the store knows the user of a call.
func (o *op) owner() string { return string(rune('A' + o.user + o.loan*maxUsers)) }

// asked adds a request without an answer to the last call.
func (p *past) asked(res stepResult) *past {
	p.step(acquireStep, p.r.ops[len(p.r.ops)-1], res)
	return p
}

// freed adds a release to the last call.
func (p *past) freed() *past {
	p.step(releaseStep, p.r.ops[len(p.r.ops)-1], freed)
	return p
}

// freesWrite adds that the last call, on the reading side, asked the store to free a write.
func (p *past) freesWrite() *past {
	p.step(forceStep, p.r.ops[len(p.r.ops)-1], unknown)
	p.r.steps[len(p.r.steps)-1].side = backend.Write
	return p
}

// inherited adds a release of what a user had before to the last call.
func (p *past) inherited(res stepResult, user int) *past {
	p.step(releaseStep, p.r.ops[len(p.r.ops)-1], res)
	p.r.steps[len(p.r.steps)-1].owner = string(rune('A' + user))
	return p
}

// takenBack adds a release of the last call's acquisition, without a user.
func (p *past) takenBack(at time.Duration) *past {
	o := p.r.ops[len(p.r.ops)-1]
	p.r.steps = append(p.r.steps, &step{
		kind: releaseStep, side: o.side, name: o.name, owner: o.owner(), lease: o.lease, call: at,
		ret: at + 1, result: freed,
	})
	return p
}

// renewed adds a renewal of what a user has, of the last call's kind.
func (p *past) renewed(user int, at time.Duration) *past {
	o := p.r.ops[len(p.r.ops)-1]
	p.r.steps = append(p.r.steps, &step{
		kind: renewStep, side: o.side, name: o.name, owner: string(rune('A' + user)),
		lease: o.lease, call: at, ret: at + 1, result: granted,
	})
	return p
}

// notes adds an attempt to the last call that has to wait at first, and leaves a note, or stands in
// line, for as long.
func (p *past) notes(place time.Duration) *past {
	o := p.r.ops[len(p.r.ops)-1]
	p.r.steps = append(p.r.steps, &step{
		kind: acquireStep, op: o, side: o.side, name: o.name, owner: o.owner(), lease: o.lease,
		permits: o.permits,
		place:   place, call: o.call + 1, ret: o.call + 2, result: refused,
	})
	return p
}

// unheard has nobody know what became of the last step.
func (p *past) unheard() *past {
	p.r.steps[len(p.r.steps)-1].result = unknown
	return p
}

// at has the last step be made later, and say that it has waited for so long.
func (p *past) at(from, to, waited time.Duration) *past {
	s := p.r.steps[len(p.r.steps)-1]
	s.call, s.ret, s.waited = from, to, waited
	return p
}

// gaveNumber has the store have given the last call another number.
func (p *past) gaveNumber(token uint64) *past {
	p.r.steps[len(p.r.steps)-1].token = token
	return p
}

// given adds a hold that a user was given as a number, by a request that no call of its own made.
func (p *past) given(user int, at time.Duration, token uint64) *past {
	p.add(acquire, user, at, at+1, yes, as(token), func(o *op) { o.given = true })
	s := p.r.steps[len(p.r.steps)-1]
	s.op, s.call, s.ret = nil, at-sec/2, at-sec/4
	return p
}

func reads(o *op)  { o.side = backend.Read }
func writes(o *op) { o.side = backend.Write }
func fenced(o *op) { o.side = backend.Fenced }

// shared is a Read for which nobody asked the store.
func shared(o *op) { o.side, o.id = backend.Read, 1 }

// reader is a user that reads already.
func reader(o *op) { o.reads = 1 }

// as returns that a fenced hold has a number.
func as(token uint64) func(*op) {
	return func(o *op) { o.side, o.asked, o.token = backend.Fenced, true, token }
}

func short(o *op) { o.lease, o.fixed = sec, true }
func twice(o *op) { o.held = 2 }
func never(o *op) { o.held = 0 }
func other(o *op) { o.name = "b" }
func counts(n int) func(*op) {
	return func(o *op) { o.count = n }
}

var calm = Rules{Calm: true, Renewed: true}

// A judged is a history, and what is wrong with it.
type judged struct {
	name  string
	rules Rules
	past  *past
	wrong string // "": nothing
}

var pasts = []judged{
	{"given to one after the other", calm, new(past).
		given(0, 2*sec, 1).add(check, 0, 3*sec, 4*sec, yes, fenced).
		add(unlock, 0, 5*sec, 6*sec, failed, fenced).freed().
		given(1, 9*sec, 2).add(check, 1, 10*sec, 11*sec, yes, fenced), ""},
	{"given to two at once", calm, new(past).
		given(0, 2*sec, 1).given(1, 4*sec, 2).add(check, 0, 5*sec, 6*sec, yes, fenced), "no order"},
	{"given to two who rely on it", Rules{}, new(past).
		given(0, 2*sec, 1).add(check, 0, 3*sec, 4*sec, yes, fenced).given(1, 5*sec, 2).
		add(check, 1, 6*sec, 7*sec, yes, fenced).add(check, 1, 8*sec, 9*sec, yes, fenced).
		add(check, 0, 7*sec, 8*sec, yes, fenced), "two could rely"},
	{"given as a smaller number", calm, new(past).
		given(0, 2*sec, 7).add(unlock, 0, 5*sec, 6*sec, failed, fenced).freed().given(1, 9*sec, 6),
		"no order"},
	{"given as a number that the store hasn't given", calm,
		new(past).given(0, 2*sec, 7).gaveNumber(8), "no order"},
	{"one after the other", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(check, 0, 3*sec, 4*sec, yes).
		add(unlock, 0, 5*sec, 6*sec, yes).freed().
		add(acquire, 1, 7*sec, 8*sec, yes), ""},
	{"an acquisition takes effect while it waits", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 3*sec, 8*sec, yes).
		add(unlock, 0, 5*sec, 6*sec, yes).freed(), ""},
	{"two at once", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 3*sec, 4*sec, yes).
		add(unlock, 0, 5*sec, 6*sec, yes).freed(), "no order"},
	{"two names", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 3*sec, 4*sec, yes, other), ""},
	{"held, and nobody holds it", calm, new(past).add(acquire, 0, 1*sec, 2*sec, no).asked(refused),
		"no order"},
	{"held by one who is about to", calm, new(past).
		add(acquire, 0, 1*sec, 9*sec, yes).add(acquire, 1, 2*sec, 3*sec, no).asked(refused), ""},
	{"held by one who has unlocked", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, yes).freed().
		add(acquire, 1, 5*sec, 6*sec, no).asked(refused), "no order"},
	{"held by one who has failed", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed).asked(unknown).add(acquire, 1, 5*sec, 6*sec, no).
		asked(refused), ""},
	{"held by one who was refused, and failed", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed).asked(refused).add(acquire, 1, 5*sec, 6*sec, no).
		asked(refused), "no order"},
	{"held by one who was not heard, and failed", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed).asked(skipped).add(acquire, 1, 5*sec, 6*sec, no).
		asked(refused), "no order"},
	{"held by nobody", Rules{}, new(past).
		add(acquire, 1, 5*sec, 6*sec, no).asked(refused), "no order"},
	{"held by nobody, where several stores vote", Rules{Voted: true}, new(past).
		add(acquire, 1, 5*sec, 6*sec, no).asked(refused), ""},
	{"two have it, where several stores vote", Rules{Voted: true}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 3*sec, 4*sec, yes).
		add(unlock, 1, 5*sec, 6*sec, yes).freed().add(unlock, 0, 7*sec, 8*sec, yes).freed(),
		"no order"},
	{"a lease runs out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, short).add(acquire, 1, 3*sec, 4*sec, yes), ""},
	{"a lease runs out early", calm, new(past).
		add(acquire, 0, 1*sec, 1100*time.Millisecond, yes, short).
		add(acquire, 1, 1200*time.Millisecond, 1300*time.Millisecond, yes), "no order"},
	{"a lease runs out late", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, short).add(acquire, 1, 5*sec, 6*sec, no).asked(refused),
		"no order"},
	{"a store may be late", Rules{Late: 9 * sec}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, short).add(acquire, 1, 5*sec, 6*sec, no).asked(refused),
		""},
	{"what is renewed ends", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 30*sec, 40*sec, yes), "no order"},
	{"what could not be renewed ends", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 30*sec, 40*sec, yes).
		add(unlock, 0, 41*sec, 42*sec, lost), ""},
	{"and is unlocked all the same", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 30*sec, 40*sec, yes).
		add(unlock, 0, 41*sec, 42*sec, yes).freed(), "no order"},
	{"lost before its time", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, lost), "no order"},
	{"lost, and valid again", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, short).add(check, 0, 3*sec, 4*sec, no).
		add(check, 0, 4*sec, 5*sec, yes), "no order"},
	{"not held though it is", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, notHeld), "no order"},
	{"not held", calm, new(past).add(unlock, 0, 3*sec, 4*sec, notHeld, never), ""},
	{"unlocked without a lock", calm, new(past).add(unlock, 0, 3*sec, 4*sec, yes, never),
		"no order"},
	{"given back while that goes on in the background", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, failed).
		add(unlock, 0, 5*sec, 6*sec, notHeld, never).add(acquire, 1, 7*sec, 8*sec, yes), ""},
	{"given back again", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, failed).
		add(unlock, 0, 5*sec, 6*sec, yes, never), "no order"},
	{"re-entered while it is given back", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, failed).
		add(acquire, 0, 5*sec, 6*sec, yes, func(o *op) { o.held = 1 }), "no order"},
	{"held before, and no more", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, yes).freed().
		add(acquire, 1, 5*sec, 6*sec, no), "no order"},
	{"a re-entry counts", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 0, 3*sec, 4*sec, yes, counts(0), twice).
		add(holdCount, 0, 5*sec, 6*sec, yes, counts(2)).add(unlock, 0, 7*sec, 8*sec, yes, twice).
		add(isHeld, 0, 9*sec, 10*sec, yes), ""},
	{"a re-entry doesn't count", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 0, 3*sec, 4*sec, yes, twice).
		add(holdCount, 0, 5*sec, 6*sec, yes, counts(1)), "no order"},
	{"free while it is held", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(isLocked, 1, 3*sec, 4*sec, no), "no order"},
	{"locked while it is free", calm, new(past).add(isLocked, 1, 3*sec, 4*sec, yes), "no order"},
	{"forced, and not told yet", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(forceUnlock, 1, 3*sec, 4*sec, yes).
		add(acquire, 1, 5*sec, 6*sec, yes).
		add(check, 0, 7*sec, 8*sec, yes).add(check, 1, 8*sec, 9*sec, yes).
		add(unlock, 0, 10*sec, 11*sec, lost), ""},
	{"forced, and never told", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(forceUnlock, 1, 3*sec, 4*sec, yes).
		add(check, 0, 17*sec, 18*sec, yes), "no order"},
	{"forced, and unlocked all the same", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(forceUnlock, 1, 3*sec, 4*sec, yes).
		add(unlock, 0, 5*sec, 6*sec, yes).freed(), "no order"},
	{"forced, and nobody held it", calm, new(past).add(forceUnlock, 1, 3*sec, 4*sec, yes),
		"no order"},
	{"forced, perhaps", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(forceUnlock, 1, 3*sec, 4*sec, failed).
		add(acquire, 1, 5*sec, 6*sec, yes), ""},
	{"wiped", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(wipe, 0, 3*sec, 4*sec, yes).
		add(acquire, 1, 5*sec, 6*sec, yes), ""},
	{"both believe", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(check, 0, 3*sec, 3*sec, yes).
		add(acquire, 1, 4*sec, 5*sec, yes).add(check, 1, 6*sec, 6*sec, yes).
		add(check, 1, 8*sec, 8*sec, yes).add(check, 0, 7*sec, 7*sec, yes), "two could rely"},
	{"free while one waits", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(unlock, 0, 3*sec, 4*sec, yes).freed().
		add(acquire, 1, 2*sec, 9*sec, failed), "waited"},
	{"handed on", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 2*sec, 5*sec, yes, func(o *op) {
		o.id = 1
	}).
		add(unlock, 0, 3*sec, 4*sec, yes).add(check, 1, 6*sec, 7*sec, yes), ""},
	{"handed on by one who is slow to return", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes).add(acquire, 1, 2*sec, 5*sec, yes, func(o *op) {
		o.id = 1
	}).
		add(unlock, 0, 3*sec, 20*sec, yes).add(forceUnlock, 2, 4*sec, 4500*time.Millisecond, yes).
		add(check, 1, 6*sec, 7*sec, yes).add(unlock, 1, 8*sec, 9*sec, lost).inherited(refused, 0).
		add(acquire, 1, 10*sec, 11*sec, yes), ""},
}

func TestPasts(t *testing.T) {
	for _, p := range slices.Concat(pasts, sharedPasts, numberedPasts, permitPasts, fairPasts) {
		t.Run(p.name, func(t *testing.T) {
			err := p.past.r.Check(p.rules).Err
			switch {
			case p.wrong == "" && err != nil:
				t.Errorf("%v; want nothing wrong", err)
			case p.wrong != "" && (err == nil || !strings.Contains(err.Error(), p.wrong)):
				t.Errorf("got %v; want an error with %q", err, p.wrong)
			}
			for user, o := range p.past.r.ops {
				t.Log(user, o.user, o.call, o)
			}
		})
	}
}
