package history

import "time"

const ms = time.Millisecond

// sharedPasts are those of a read-write lock. Users 0 and 1 have one client, and 2 and 3 another.
var sharedPasts = []judged{
	{"two read", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 3*sec, 4*sec, yes, reads).
		add(check, 0, 5*sec, 6*sec, yes, reads).add(check, 2, 5*sec, 6*sec, yes, reads).
		add(check, 0, 7*sec, 8*sec, yes, reads).add(check, 2, 7*sec, 8*sec, yes, reads), ""},
	{"one writes after the other", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		freed().
		add(acquire, 2, 5*sec, 6*sec, yes, writes), ""},
	{"two write", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 2, 3*sec, 4*sec, yes, writes),
		"no order"},
	{"one writes while another reads", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 3*sec, 4*sec, yes, writes),
		"no order"},
	{"one reads while another writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 2, 3*sec, 4*sec, yes, reads),
		"no order"},
	{"one writes when the last has read", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 1*sec, 2*sec, yes, reads).
		add(acquire, 3, 3*sec, 9*sec, yes, writes).
		add(unlock, 0, 4*sec, 5*sec, yes, reads).freed().add(unlock, 2, 7*sec, 8*sec, yes, reads).
		freed(), ""},
	{"one writes when the first has read", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 1*sec, 2*sec, yes, reads).
		add(acquire, 3, 3*sec, 6*sec, yes, writes).
		add(unlock, 0, 4*sec, 5*sec, yes, reads).freed().add(unlock, 2, 7*sec, 8*sec, yes, reads).
		freed(), "no order"},
	{"a read is given back twice", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(unlock, 0, 3*sec, 4*sec, yes, reads).freed().
		add(unlock, 0, 5*sec, 6*sec, yes, reads), "no order"},
	{"a write is given back as a read", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, reads).freed(),
		"no order"},

	{"one reads what he writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(unlock, 0, 5*sec, 6*sec, yes, reads).freed().add(check, 0, 7*sec, 8*sec, yes, writes),
		""},
	{"one goes from writing to reading, and another reads", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(unlock, 0, 5*sec, 6*sec, yes, writes).freed().add(acquire, 2, 7*sec, 8*sec, yes, reads).
		add(check, 0, 9*sec, 10*sec, yes, reads), ""},
	{"one goes from writing to reading, and another writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(unlock, 0, 5*sec, 6*sec, yes, writes).freed().
		add(acquire, 2, 7*sec, 8*sec, yes, writes), "no order"},
	{"one goes on reading what ended while he wrote", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes, short).
		add(acquire, 0, 2*sec, 2100*ms, yes, reads).
		add(acquire, 0, 2200*ms, 2300*ms, yes, reads, func(o *op) {
			o.id, o.held, o.reads = 1, 1, 1
		}).
		add(unlock, 0, 5*sec, 6*sec, lost, reads), ""},
	{"what is read is lost, and what is written is not", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(unlock, 0, 5*sec, 6*sec, lost, reads), "no order"},
	{"one can't read since what he writes is lost", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes, short).
		add(acquire, 0, 3*sec, 4*sec, lost, reads), ""},
	{"one can't read since what he writes is lost, and goes on writing", Rules{Late: 9 * sec},
		new(past).
			add(acquire, 0, 1*sec, 2*sec, yes, writes, short).
			add(acquire, 0, 3*sec, 4*sec, lost, reads).
			add(check, 0, 5*sec, 6*sec, yes, writes), "no order"},
	{"one can't read again though nothing is lost", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 0, 3*sec, 4*sec, lost, reads, twice),
		"no order"},
	{"one reads when a writer's lease has run out, who goes on", Rules{Late: 9 * sec}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes, short).add(acquire, 2, 3*sec, 4*sec, yes, reads).
		add(check, 0, 5*sec, 6*sec, yes, writes), "no order"},
	{"what he reads keeps what he wrote in the store", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes, short).
		add(acquire, 0, 1500*ms, 1600*ms, yes, reads).
		add(isLocked, 2, 5*sec, 6*sec, yes, writes), ""},
	{"one can't read though nothing is lost", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, lost, reads),
		"no order"},
	{"one goes from reading to writing", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).
		add(acquire, 0, 3*sec, 4*sec, yes, writes, reader), "no order"},
	{"one must not go from reading to writing", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).
		add(acquire, 0, 3*sec, 4*sec, upgrade, writes, reader), ""},
	{"one must not write, who doesn't read", calm, new(past).
		add(acquire, 0, 3*sec, 4*sec, upgrade, writes), "no order"},
	{"one must not write again, who reads what he writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(acquire, 0, 5*sec, 6*sec, upgrade, writes, reader), "no order"},
	{"one writes when what he read is over", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads, short).add(acquire, 0, 3*sec, 4*sec, yes, writes),
		""},

	{"a reader's lease runs out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads, short).add(acquire, 2, 3*sec, 4*sec, yes, writes),
		""},
	{"a reader's lease runs out early", calm, new(past).
		add(acquire, 0, 1*sec, 1100*ms, yes, reads, short).
		add(acquire, 2, 1200*ms, 1300*ms, yes, writes), "no order"},
	{"a reader's lease runs out, and another reads", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads, short).add(acquire, 2, 1*sec, 2*sec, yes, reads).
		add(acquire, 3, 3*sec, 4*sec, yes, writes), "no order"},
	{"a dead reader keeps a writer out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads, short).add(acquire, 2, 3*sec, 4*sec, no, writes).
		asked(refused), "no order"},
	{"a reader keeps a writer out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 3*sec, 4*sec, no, writes).
		asked(refused), ""},
	{"nobody keeps a writer out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(unlock, 0, 3*sec, 4*sec, yes, reads).freed().
		add(acquire, 2, 5*sec, 6*sec, no, writes).asked(refused), "no order"},
	{"what a reader did not hear keeps a writer out", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed, reads).asked(unknown).
		add(acquire, 2, 5*sec, 6*sec, no, writes).asked(refused), ""},
	{"what a reader did not hear keeps a reader out", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed, reads).asked(unknown).
		add(acquire, 2, 5*sec, 6*sec, no, reads).asked(refused), "no order"},
	{"a writer keeps a reader out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 2, 3*sec, 4*sec, no, reads).
		asked(refused), ""},
	{"a reader keeps a reader out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 3*sec, 4*sec, no, reads).
		asked(refused), "no order"},
	{"a note keeps a reader out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 2, 3*sec, 4*sec, no, reads).asked(refused), ""},
	{"a note that is over keeps a reader out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(sec).
		add(acquire, 2, 4*sec, 5*sec, no, reads).asked(refused), "no order"},
	{"a note that was taken back keeps a reader out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 3*sec, failed, writes).
		notes(9*sec).freed().
		add(acquire, 2, 4*sec, 5*sec, no, reads).asked(refused), "no order"},
	{"a note of one who writes by now keeps a reader out", calm, new(past).
		add(acquire, 1, 2*sec, 3*sec, yes, writes).notes(9*sec).
		add(unlock, 1, 4*sec, 5*sec, yes, writes).freed().
		add(acquire, 2, 6*sec, 7*sec, no, reads).asked(refused), "no order"},
	{"a note for another lock keeps a reader out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 2, 3*sec, 4*sec, no, reads, other).asked(refused), "no order"},
	{"a writer's note that nobody heard of keeps a reader out", Rules{}, new(past).
		add(acquire, 1, 2*sec, 3*sec, failed, writes).notes(9*sec).unheard().
		add(acquire, 2, 20*sec, 21*sec, no, reads).asked(refused), ""},

	{"a read is shared", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(unlock, 0, 5*sec, 6*sec, yes, reads).add(check, 1, 7*sec, 8*sec, yes, reads).
		add(unlock, 1, 9*sec, 10*sec, yes, reads).inherited(freed, 0).
		add(acquire, 2, 11*sec, 12*sec, yes, writes), ""},
	{"a read that nobody heard of is taken back, and its reader shares another", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 1500*ms, 2500*ms, yes, reads).
		takenBack(3*sec).renewed(0, 9*sec).
		add(check, 1, 15*sec, 16*sec, yes, reads).add(unlock, 1, 17*sec, 18*sec, yes, reads), ""},
	{"a read is taken back, and goes on", Rules{}, new(past).
		add(acquire, 1, 1500*ms, 2500*ms, yes, reads).takenBack(3*sec).
		add(check, 1, 15*sec, 16*sec, yes, reads).add(unlock, 1, 17*sec, 18*sec, yes, reads),
		"no order"},
	{"a read is taken back, and goes on beside that of another client", Rules{}, new(past).
		add(acquire, 2, 1*sec, 2*sec, yes, reads).add(acquire, 1, 1500*ms, 2500*ms, yes, reads).
		takenBack(3*sec).renewed(2, 9*sec).
		add(check, 1, 15*sec, 16*sec, yes, reads).add(unlock, 1, 17*sec, 18*sec, yes, reads),
		"no order"},
	{"one who leaves ends what another shares", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(unlock, 0, 5*sec, 6*sec, yes, reads).freed().add(acquire, 2, 7*sec, 8*sec, yes, writes),
		"no order"},
	{"what another client has is shared", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 3*sec, 4*sec, yes, shared),
		"no order"},
	{"what is given back is shared", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(unlock, 0, 3*sec, 4*sec, yes, reads).freed().
		add(acquire, 1, 5*sec, 6*sec, yes, shared), "no order"},
	{"what nobody was granted is shared", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed, reads).asked(refused).
		add(acquire, 1, 3*sec, 4*sec, yes, shared), "no order"},
	{"readers share what was written", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(isLocked, 2, 5*sec, 6*sec, no, reads).add(isLocked, 2, 5*sec, 6*sec, yes, writes).
		add(isLocked, 1, 5*sec, 6*sec, yes, reads).
		add(forceUnlock, 2, 7*sec, 8*sec, no, reads).add(check, 1, 9*sec, 10*sec, yes, reads).
		add(unlock, 1, 11*sec, 12*sec, yes, reads).inherited(freed, 0), ""},
	{"readers share what was written twice", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).
		add(acquire, 0, 3*sec, 4*sec, yes, writes, twice).
		add(unlock, 0, 5*sec, 6*sec, yes, writes, twice).inherited(granted, 0).
		add(unlock, 0, 7*sec, 8*sec, yes, writes).add(acquire, 1, 7*sec, 8*sec, yes, shared), ""},
	{"what readers share of a write is forced", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(forceUnlock, 2, 5*sec, 6*sec, yes, writes).add(acquire, 2, 7*sec, 8*sec, yes, writes).
		add(unlock, 1, 9*sec, 10*sec, lost, reads), ""},
	{"what readers share of a write is forced by one of them", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(forceUnlock, 1, 5*sec, 6*sec, yes, reads).add(acquire, 2, 7*sec, 8*sec, yes, writes).
		add(unlock, 1, 9*sec, 10*sec, lost, reads), ""},
	{"what readers are lent is forced before they have heard of it", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 1, 1500*ms, 9*sec, yes, reads).
		at(7*sec, 8*sec, 0).
		add(unlock, 0, 3*sec, 4*sec, yes, writes).add(forceUnlock, 0, 5*sec, 6*sec, yes, reads),
		""},
	{"what readers are lent is forced as a read by another client", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 1, 1500*ms, 9*sec, yes, reads).
		at(7*sec, 8*sec, 0).
		add(unlock, 0, 3*sec, 4*sec, yes, writes).add(forceUnlock, 2, 5*sec, 6*sec, yes, reads),
		"no order"},
	{"a write that nobody shares is forced as a read", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(forceUnlock, 1, 5*sec, 6*sec, yes, reads),
		"no order"},
	{"what was lent is forced so late that it frees another's write", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(forceUnlock, 1, 5*sec, 6*sec, failed, reads).freesWrite().
		add(unlock, 1, 7*sec, 8*sec, yes, reads).inherited(freed, 0).
		add(acquire, 2, 9*sec, 10*sec, yes, writes).add(acquire, 0, 11*sec, 12*sec, yes, writes),
		""},
	{"what is read is forced late, and doesn't free another's write", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(forceUnlock, 1, 5*sec, 6*sec, failed, reads).
		add(unlock, 1, 7*sec, 8*sec, yes, reads).inherited(freed, 0).
		add(acquire, 2, 9*sec, 10*sec, yes, writes).add(acquire, 0, 11*sec, 12*sec, yes, writes),
		"no order"},
	{"readers share what somebody writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 1, 3*sec, 4*sec, yes, shared),
		"no order"},
	{"readers share what another client has written", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 2, 3*sec, 4*sec, yes, shared), "no order"},
	{"somebody writes beside readers who share what was written", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(unlock, 0, 3*sec, 4*sec, yes, writes).
		add(acquire, 1, 3*sec, 4*sec, yes, shared).
		add(acquire, 2, 5*sec, 6*sec, yes, writes), "no order"},
	{"what is shared may have been about to end", Rules{}, new(past).
		add(acquire, 0, 1*sec, 1500*ms, yes, reads, short).
		add(acquire, 1, 1900*ms, 1950*ms, yes, shared).
		add(acquire, 2, 2100*ms, 2200*ms, yes, writes).add(unlock, 1, 3*sec, 4*sec, lost, reads),
		""},
	{"what is shared was struck", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(forceUnlock, 2, 3*sec, 4*sec, yes, reads).
		add(acquire, 2, 5*sec, 6*sec, yes, writes).
		add(acquire, 1, 7*sec, 8*sec, yes, shared).add(unlock, 1, 9*sec, 10*sec, lost, reads), ""},
	{"what is shared was struck, and another writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(forceUnlock, 2, 3*sec, 4*sec, yes, reads).
		add(acquire, 2, 5*sec, 6*sec, yes, writes).
		add(acquire, 1, 7*sec, 8*sec, yes, shared).add(isLocked, 1, 9*sec, 10*sec, no, reads).
		add(unlock, 1, 11*sec, 12*sec, lost, reads), ""},

	{"a re-entry counts for its side", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(acquire, 0, 5*sec, 6*sec, yes, shared, twice).
		add(holdCount, 0, 7*sec, 8*sec, yes, reads, counts(2)).
		add(holdCount, 0, 7*sec, 8*sec, yes, writes, counts(1)), ""},
	{"a re-entry counts for both sides", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(holdCount, 0, 7*sec, 8*sec, yes, writes, counts(2)), "no order"},
	{"locked on one side", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(isLocked, 2, 3*sec, 4*sec, yes, reads).
		add(isLocked, 2, 3*sec, 4*sec, no, writes), ""},
	{"locked on the other side", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(isLocked, 2, 3*sec, 4*sec, yes, writes),
		"no order"},
	{"not locked though somebody reads", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(isLocked, 2, 3*sec, 4*sec, no, reads),
		"no order"},
	{"locked though nobody reads", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(isLocked, 2, 3*sec, 4*sec, yes, reads),
		"no order"},
	{"valid for one who doesn't read", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(check, 0, 3*sec, 4*sec, yes, reads),
		"no order"},
	{"over, and valid again", Rules{Late: 9 * sec}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads, short).add(check, 0, 3*sec, 4*sec, no, reads).
		add(check, 0, 5*sec, 6*sec, yes, reads), "no order"},

	{"readers are forced", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 2, 1*sec, 2*sec, yes, reads).
		add(forceUnlock, 3, 3*sec, 4*sec, yes, reads).
		add(acquire, 3, 5*sec, 6*sec, yes, writes).add(check, 0, 7*sec, 8*sec, yes, reads).
		add(unlock, 2, 9*sec, 10*sec, lost, reads), ""},
	{"readers are forced, and there are none", Rules{}, new(past).
		add(forceUnlock, 3, 3*sec, 4*sec, yes, reads), "no order"},
	{"readers are forced, and stay", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(forceUnlock, 3, 3*sec, 4*sec, no, reads),
		"no order"},
	{"a reader within a write is forced", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(forceUnlock, 3, 5*sec, 6*sec, yes, reads), "no order"},
	{"a reader within a write stays", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(forceUnlock, 3, 5*sec, 6*sec, no, reads).add(unlock, 0, 7*sec, 8*sec, yes, reads).
		freed(), ""},
	{"a writer is forced, with what he reads", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 0, 3*sec, 4*sec, yes, reads).
		add(forceUnlock, 3, 5*sec, 6*sec, yes, writes).add(acquire, 3, 7*sec, 8*sec, yes, writes).
		add(unlock, 0, 9*sec, 10*sec, lost, reads), ""},
	{"a writer is forced, who only reads", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(forceUnlock, 3, 3*sec, 4*sec, yes, writes),
		"no order"},
	{"readers are forced, perhaps", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(forceUnlock, 3, 3*sec, 4*sec, failed, reads).
		add(acquire, 3, 5*sec, 6*sec, yes, writes), ""},
	{"readers are forced, perhaps, while two write", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(check, 0, 3*sec, 3*sec, yes, writes).
		add(forceUnlock, 3, 3*sec, 4*sec, failed, reads).
		add(acquire, 2, 5*sec, 6*sec, yes, writes).add(check, 2, 7*sec, 7*sec, yes, writes).
		add(check, 0, 8*sec, 8*sec, yes, writes).add(check, 2, 9*sec, 9*sec, yes, writes),
		"two could rely"},
	{"readers are wiped", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(wipe, 0, 3*sec, 4*sec, yes).
		add(acquire, 2, 5*sec, 6*sec, yes, writes), ""},
	{"forced, and never told that it reads no more", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(forceUnlock, 3, 3*sec, 4*sec, yes, reads).
		add(check, 0, 17*sec, 18*sec, yes, reads), "no order"},

	{"one believes to read while another believes to write", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(check, 0, 3*sec, 3*sec, yes, reads).
		add(acquire, 2, 4*sec, 5*sec, yes, writes).add(check, 2, 6*sec, 6*sec, yes, writes).
		add(check, 2, 8*sec, 8*sec, yes, writes).add(check, 0, 7*sec, 7*sec, yes, reads),
		"two could rely"},
	{"one believes to write, also after he has read", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(check, 0, 3*sec, 3*sec, yes, writes).
		add(acquire, 0, 4*sec, 5*sec, yes, reads).add(unlock, 0, 6*sec, 7*sec, yes, reads).freed().
		add(acquire, 2, 4*sec, 4500*ms, yes, writes).add(check, 2, 5*sec, 5*sec, yes, writes).
		add(check, 2, 6*sec, 6*sec, yes, writes).
		add(check, 0, 8*sec, 8*sec, yes, writes), "two could rely"},
	{"a reader overtakes a writer", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 2, 3*sec, 4*sec, yes, reads), "before"},
	{"a reader overtakes a writer in a store that counts seconds", Rules{Blink: 2 * sec}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 2, 3*sec, 4*sec, yes, reads), ""},
	{"a reader comes before a writer", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 2, 1500*ms, 4*sec, yes, reads).at(3*sec, 3500*ms, 1500*ms), ""},
	{"a reader says that it came before a writer", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 2, 2500*ms, 4*sec, yes, reads).at(3*sec, 3500*ms, 1500*ms), "before"},
	{"a reader gets in while a writer leaves its note", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 1*sec, 9*sec, failed, writes).
		notes(9*sec).at(3*sec, 4*sec, 2*sec).
		add(acquire, 2, 2500*ms, 5*sec, yes, reads), ""},
	{"a reader comes when a writer has given up", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 3*sec, failed, writes).
		notes(9*sec).freed().
		add(acquire, 2, 4*sec, 5*sec, yes, reads), ""},
	{"a reader comes when a writer's note was wiped", calm, new(past).
		add(acquire, 1, 2*sec, 9*sec, failed, writes).notes(9*sec).add(wipe, 0, 3*sec, 4*sec, yes).
		add(acquire, 2, 5*sec, 6*sec, yes, reads), ""},
	{"a writer reads before another writes", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, writes).add(acquire, 2, 2*sec, 9*sec, failed, writes).
		notes(9*sec).
		add(acquire, 0, 3*sec, 4*sec, yes, reads), ""},
	{"a reader comes to another lock than a writer", calm, new(past).
		add(acquire, 1, 2*sec, 9*sec, failed, writes).notes(9*sec).
		add(acquire, 2, 3*sec, 4*sec, yes, reads, other), ""},
	{"a reader comes when a writer's note is over", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 1, 2*sec, 9*sec, failed, writes).
		notes(sec).
		add(acquire, 2, 4*sec, 5*sec, yes, reads), ""},
	{"free for one who waits to write", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(unlock, 0, 3*sec, 4*sec, yes, reads).freed().
		add(acquire, 2, 2*sec, 9*sec, failed, writes), "waited"},
	{"still read while one waits to write", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, reads).add(acquire, 3, 1*sec, 2*sec, yes, reads).
		add(unlock, 0, 3*sec, 4*sec, yes, reads).freed().
		add(acquire, 2, 2*sec, 9*sec, failed, writes), ""},
}

// numberedPasts are those of a fenced lock.
var numberedPasts = []judged{
	{"numbers grow", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(unlock, 0, 3*sec, 4*sec, yes, fenced).freed().
		add(acquire, 2, 5*sec, 6*sec, yes, as(8)), ""},
	{"a number comes again", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(unlock, 0, 3*sec, 4*sec, yes, fenced).freed().
		add(acquire, 2, 5*sec, 6*sec, yes, as(7)), "no order"},
	{"numbers shrink", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(unlock, 0, 3*sec, 4*sec, yes, fenced).freed().
		add(acquire, 2, 5*sec, 6*sec, yes, as(6)), "no order"},
	{"numbers shrink after one that was not asked for", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, fenced).gaveNumber(7).
		add(unlock, 0, 3*sec, 4*sec, yes, fenced).freed().
		add(acquire, 2, 5*sec, 6*sec, yes, as(6)), "no order"},
	{"numbers shrink when a lease has run out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7), short).add(acquire, 2, 5*sec, 6*sec, yes, as(6)),
		"no order"},
	{"numbers shrink by force", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(forceUnlock, 2, 3*sec, 4*sec, yes, fenced).
		add(acquire, 2, 5*sec, 6*sec, yes, as(6)), "no order"},
	{"numbers shrink beside a plain lock", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(unlock, 0, 3*sec, 4*sec, yes, fenced).freed().
		add(acquire, 2, 5*sec, 6*sec, yes).add(unlock, 2, 7*sec, 8*sec, yes).freed().
		add(acquire, 0, 9*sec, 10*sec, yes, as(7)), "no order"},
	{"numbers shrink with the store's data", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(wipe, 0, 3*sec, 4*sec, yes).
		add(acquire, 2, 5*sec, 6*sec, yes, as(1)), ""},
	{"numbers that last shrink with the store's data", Rules{Lasting: true}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(wipe, 0, 3*sec, 4*sec, yes).
		add(acquire, 2, 5*sec, 6*sec, yes, as(1)), "no order"},
	{"number 0", calm, new(past).add(acquire, 0, 1*sec, 2*sec, yes, fenced), "no order"},
	{"no number", calm, new(past).add(acquire, 0, 1*sec, 2*sec, yes, as(0)).gaveNumber(7),
		"without a number"},
	{"another number than the store's", calm,
		new(past).add(acquire, 0, 1*sec, 2*sec, yes, as(7)).gaveNumber(8), "number 8"},
	{"a plain lock with a number", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, func(o *op) { o.asked, o.token = true, 7 }),
		"though it is exclusive"},
	{"a re-entry has the number of its hold", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(acquire, 0, 3*sec, 4*sec, yes, as(7), twice),
		""},
	{"a re-entry has another number", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).add(acquire, 0, 3*sec, 4*sec, yes, as(8), twice),
		"no order"},
	{"handed on with its number", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, as(7)).
		add(acquire, 1, 2*sec, 5*sec, yes, as(7), func(o *op) { o.id = 1 }).
		add(unlock, 0, 3*sec, 4*sec, yes, fenced), "no order"},
}
