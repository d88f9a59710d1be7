package history

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
)

func fair(o *op) { o.side = backend.Fair }

// lined is a hold that an owner in line was given.
func lined(o *op) { o.side, o.id = backend.Fair, 1 }

const longPlace = 20 * sec

// keeps adds that the place of the last call's owner is kept.
func (p *past) keeps(from, place time.Duration) *past {
	o := p.r.ops[len(p.r.ops)-1]
	p.r.steps = append(p.r.steps, &step{
		kind: placesStep, side: o.side, name: o.name, owner: o.owner(), place: place, call: from,
		ret: from + 1, result: refused,
	})
	return p
}

// again adds that the last call asks once more, and stands in line.
func (p *past) again(from, place time.Duration) *past { return p.notes(place).at(from, from+1, 0) }

// hears adds that the last call's owner is told that it was given the lock.
func (p *past) hears(at, lease time.Duration) *past {
	o := p.r.ops[len(p.r.ops)-1]
	p.r.steps = append(p.r.steps, &step{
		kind: grantStep, side: o.side, name: o.name, owner: o.owner(), lease: lease, call: at,
		ret: at + 1, result: granted,
	})
	return p
}

// forced adds that the last call freed the lock by force.
func (p *past) forced() *past {
	p.step(forceStep, p.r.ops[len(p.r.ops)-1], freed)
	return p
}

// fairPasts are those of a fair lock. User 0 has it at first, and 2 and 3 wait.
var fairPasts = []judged{
	{"in turn", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 5*sec, yes, lined).notes(longPlace).
		add(acquire, 3, 3*sec, 7*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(unlock, 2, 6*sec, 7*sec, yes, fair).
		freed(), ""},
	{"out of turn", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).
		add(acquire, 3, 3*sec, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(unlock, 3, 6*sec, 7*sec, yes, fair).
		freed(), "before"},
	{"out of turn by asking once", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).
		add(acquire, 3, 4100*ms, 5*sec, yes, fair).
		add(unlock, 0, 3*sec, 4*sec, yes, fair).freed().add(unlock, 3, 6*sec, 7*sec, yes, fair).
		freed(), "before"},
	{"out of turn before one who gives up later", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, failed, fair).notes(longPlace).
		add(acquire, 3, 3*sec, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed(), "before"},
	{"in turn after one who has given up", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 3500*ms, failed, fair).notes(longPlace).freed().
		add(acquire, 3, 3*sec, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed(), ""},
	{"in turn, having come when the other was not answered yet", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).at(2500*ms, 3500*ms, 0).
		add(acquire, 3, 3*sec, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().
		add(unlock, 3, 6*sec, 7*sec, yes, fair).freed(), ""},
	{"in turn, the other waits for another lock", calm, new(past).
		add(acquire, 2, 2*sec, 9*sec, failed, fair, other).notes(longPlace).
		add(acquire, 3, 3*sec, 5*sec, yes, fair), ""},
	{"a plain lock has no turns", calm, new(past).
		add(acquire, 2, 2*sec, 9*sec, failed, fair).notes(longPlace).
		add(acquire, 3, 3*sec, 5*sec, yes), ""},
	{"a re-entry has no turn", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).add(acquire, 2, 2*sec, 9*sec, failed, fair).
		notes(longPlace).
		add(acquire, 0, 3*sec, 4*sec, yes, fair, twice), ""},

	{"a place was not kept", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(sec).
		add(acquire, 3, 3*sec, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(unlock, 3, 6*sec, 7*sec, yes, fair).
		freed(), ""},
	{"a place was kept", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(sec).keeps(2900*ms, sec).
		keeps(3800*ms, 2*sec).
		add(acquire, 3, 2500*ms, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(unlock, 3, 6*sec, 7*sec, yes, fair).
		freed(), "before"},
	{"who was not heard of may have had the lock", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).
		add(acquire, 3, 3*sec, 5*sec, yes, lined).notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(unlock, 3, 6*sec, 7*sec, yes, fair).
		freed(), ""},
	{"who has just been heard of can't have had the lock", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).keeps(4500*ms, longPlace).
		add(acquire, 3, 4400*ms, 5*sec, yes, lined).notes(longPlace).at(4600*ms, 4700*ms, 0).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(unlock, 3, 6*sec, 7*sec, yes, fair).
		freed(), "before"},
	{"who comes back is ahead of those who came later", Rules{}, new(past).
		add(acquire, 2, 2*sec, 29*sec, failed, fair).notes(3*sec).keeps(10*sec, 3*sec).
		add(acquire, 3, 9500*ms, 10500*ms, yes, lined).notes(longPlace).at(10100*ms, 10200*ms, 0),
		"before"},
	{"who asks again may be the last", Rules{}, new(past).
		add(acquire, 2, 2*sec, 29*sec, failed, fair).notes(3*sec).again(10*sec, 3*sec).
		add(acquire, 3, 9500*ms, 10500*ms, yes, lined).notes(longPlace).at(10100*ms, 10200*ms, 0),
		""},
	{"who was given the lock while another was away", Rules{}, new(past).
		add(acquire, 2, 2*sec, 29*sec, failed, fair).notes(3*sec).keeps(10*sec, 3*sec).
		add(acquire, 3, 9*sec, 10500*ms, yes, lined).notes(longPlace), ""},
	{"who comes back is ahead of all", calm, new(past).
		add(acquire, 2, 2*sec, 29*sec, failed, fair).notes(longPlace).
		add(acquire, 3, 3*sec, 9*sec, yes, lined).notes(sec).keeps(8*sec, sec), ""},
	{"who has given the lock back has no place", Rules{}, new(past).
		add(acquire, 2, 2*sec, 2300*ms, yes, lined).notes(longPlace).hears(2200*ms, sec).
		add(unlock, 2, 2400*ms, 2500*ms, yes, fair).freed().
		add(acquire, 3, 2300*ms, 2600*ms, yes, lined).notes(longPlace), ""},
	{"who is told that the lock is his may have had it", Rules{}, new(past).
		add(acquire, 2, 2*sec, 29*sec, failed, fair).notes(longPlace).hears(2200*ms, 100*ms).
		add(acquire, 3, 2100*ms, 2800*ms, yes, lined).notes(longPlace), ""},
	{"a grant that its owner didn't hear of has ended, and another follows", Rules{}, new(past).
		add(acquire, 2, 1*sec, 12*sec, yes, lined).asked(granted).at(1200*ms, 1300*ms, 0).
		again(8*sec, 3*sec).hears(11500*ms, sec).
		add(acquire, 4, 2*sec, 3*sec, no, fair).asked(refused).
		add(acquire, 3, 6*sec, 7*sec, yes, fair).
		add(unlock, 3, 11400*ms, 11600*ms, yes, fair).freed().
		add(check, 2, 12100*ms, 12200*ms, yes, fair), ""},
	{"a grant that its owner didn't hear of has ended, and none follows", Rules{}, new(past).
		add(acquire, 2, 1*sec, 12*sec, failed, fair).asked(granted).at(1200*ms, 1300*ms, 0).
		again(8*sec, 3*sec).takenBack(11*sec).
		add(acquire, 4, 13*sec, 14*sec, no, fair).asked(refused), "no order"},
	{"what nobody heard of may have been a hold", Rules{}, new(past).
		add(acquire, 2, 2*sec, 29*sec, failed, fair).notes(longPlace).again(2200*ms, longPlace).
		unheard().
		add(acquire, 3, 2100*ms, 2800*ms, yes, lined).notes(longPlace), ""},
	{"the line is forced", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).add(acquire, 2, 2*sec, 9*sec, failed, fair).
		notes(longPlace).
		add(forceUnlock, 1, 3*sec, 4*sec, yes, fair).add(acquire, 3, 3*sec, 5*sec, yes, lined).
		notes(longPlace), ""},
	{"a fair lock is forced, and given to the same owner unheard", calm, new(past).
		add(acquire, 2, 1*sec, 3*sec, yes, lined).notes(longPlace).hears(2500*ms, sec).
		keeps(5500*ms, longPlace).
		add(forceUnlock, 1, 4*sec, 5*sec, yes, fair).forced().
		add(unlock, 2, 8*sec, 9*sec, yes, fair).freed(), ""},
	{"a fair lock is forced, given to the same owner unheard, and re-entered", calm, new(past).
		add(acquire, 2, 1*sec, 3*sec, yes, lined).notes(longPlace).hears(2500*ms, sec).
		keeps(5500*ms, longPlace).
		add(forceUnlock, 1, 4*sec, 5*sec, yes, fair).forced().
		add(acquire, 2, 6*sec, 7*sec, yes, fair, twice).
		add(unlock, 2, 8*sec, 9*sec, yes, fair, twice).freed(), ""},
	{"a fair lock is forced, and not given to the same owner", calm, new(past).
		add(acquire, 2, 1*sec, 3*sec, yes, lined).notes(longPlace).hears(2500*ms, sec).
		add(forceUnlock, 1, 4*sec, 5*sec, yes, fair).forced().
		add(unlock, 2, 8*sec, 9*sec, yes, fair).freed(), "no order"},
	{"the line is wiped", Rules{}, new(past).
		add(acquire, 2, 2*sec, 9*sec, failed, fair).notes(longPlace).
		add(wipe, 0, 2200*ms, 2300*ms, yes).
		add(acquire, 3, 2400*ms, 2500*ms, yes, fair), ""},

	{"two have a fair lock at once", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).add(acquire, 2, 2*sec, 5*sec, yes, lined).
		notes(longPlace), "no order"},
	{"nobody has said that a fair lock is free", calm,
		new(past).add(acquire, 2, 2*sec, 5*sec, yes, lined), ""},
	{"a fair lock is held by one in line who doesn't know", calm, new(past).
		add(acquire, 2, 2*sec, 9*sec, failed, fair).notes(longPlace).
		add(acquire, 3, 3*sec, 4*sec, no, fair).asked(refused), ""},
	{"a fair lock is held by nobody", calm, new(past).
		add(acquire, 2, 2*sec, 3*sec, failed, fair).notes(longPlace).freed().
		add(acquire, 3, 4*sec, 5*sec, no, fair).asked(refused), "no order"},
	{"a lease of a fair lock begins when it is given", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).add(acquire, 2, 2*sec, 5*sec, yes, lined, short).
		notes(longPlace).
		add(unlock, 0, 4*sec, 5*sec, yes, fair).freed().add(acquire, 3, 6*sec, 7*sec, yes, fair),
		""},
	{"a fair lock is free while somebody waits", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).add(acquire, 2, 2*sec, 9*sec, failed, fair).
		notes(longPlace).
		add(unlock, 0, 3*sec, 4*sec, yes, fair).freed(), "waited"},
	{"a fair lock is given to one that doesn't hear of it", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 1, 1*sec, 2500*ms, yes, lined).notes(longPlace).hears(2400*ms, sec).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).hears(8500*ms, sec).
		add(unlock, 0, 3*sec, 4*sec, yes, fair).freed().
		add(forceUnlock, 1, 8*sec, 9*sec, yes, fair).forced(), ""},
	{"a fair lock is renewed by one that hasn't heard of it", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).
		add(acquire, 2, 2*sec, 9*sec, yes, lined).notes(longPlace).hears(8500*ms, sec).
		add(unlock, 0, 3*sec, 4*sec, yes, fair).freed().renewed(1, 7*sec), ""},
	{"a fair lock is given away while somebody waits", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fair).add(acquire, 2, 1*sec, 9*sec, yes, lined).
		notes(longPlace).hears(4*sec, sec).
		add(acquire, 3, 2*sec, 9*sec, failed, fair).notes(longPlace).
		add(unlock, 0, 3*sec, 4*sec, yes, fair).freed(), ""},
}
