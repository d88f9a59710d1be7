package history

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// of returns that a call is about some of so many permits.
func of(n, limit int) func(*op) {
	return func(o *op) { o.side, o.permits, o.limit = backend.Permits, n, limit }
}

// one is a hold of one permit of one.
var one = of(1, 1)

// second is what a user has beside another hold.
func second(o *op) { o.loan = 1 }

// handed is what nobody asked the store for.
func handed(o *op) { o.id = 1 }

// permitPasts are those of a semaphore. Users 0 and 1 have one client, and 2 and 3 another.
var permitPasts = []judged{
	{"as many permits as there are", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 2, 3*sec, 4*sec, yes, of(1, 3)).
		add(check, 0, 5*sec, 6*sec, yes, of(2, 3)).add(check, 2, 5*sec, 6*sec, yes, of(1, 3)), ""},
	{"more permits than there are", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 2, 3*sec, 4*sec, yes, of(2, 3)),
		"no order"},
	{"more permits than there are, of several", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(1, 3)).add(acquire, 1, 1*sec, 2*sec, yes, of(1, 3)).
		add(acquire, 2, 1*sec, 2*sec, yes, of(1, 3)).add(acquire, 3, 1*sec, 2*sec, yes, of(1, 3)),
		"no order"},
	{"more permits than there are, of one user", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 0, 3*sec, 4*sec, yes, of(2, 3), second), "no order"},
	{"some permits, and some more, of one user", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 0, 3*sec, 4*sec, yes, of(1, 3), second).
		add(unlock, 0, 5*sec, 6*sec, yes, of(2, 3)).freed().
		add(check, 0, 7*sec, 8*sec, yes, of(1, 3), second), ""},
	{"more permits than there are, as those believe who have them", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3), short).
		add(check, 0, 2*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 2, 3*sec, 4*sec, yes, of(2, 3)).add(check, 2, 4*sec, 4*sec, yes, of(2, 3)).
		add(check, 0, 5*sec, 5*sec, yes, of(2, 3)).add(check, 2, 6*sec, 6*sec, yes, of(2, 3)),
		"4 permits of"},
	{"as many permits as there are, as those believe who have them", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3), short).
		add(check, 0, 2*sec, 2*sec, yes, of(2, 3)).
		add(check, 0, 2500*ms, 2500*ms, yes, of(2, 3)).
		add(acquire, 2, 3*sec, 4*sec, yes, of(2, 3)).add(check, 2, 4*sec, 4*sec, yes, of(2, 3)).
		add(check, 2, 6*sec, 6*sec, yes, of(2, 3)), ""},
	{"permits of two semaphores", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(acquire, 2, 3*sec, 4*sec, yes, one, other), ""},
	{"permits come back, and another has them", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(acquire, 2, 3*sec, 6*sec, yes, one).
		add(unlock, 0, 4*sec, 5*sec, yes, one).freed(), ""},

	{"permits are handed on", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 2)).add(unlock, 0, 3*sec, 4*sec, yes, of(2, 2)).
		add(acquire, 1, 3*sec, 5*sec, yes, of(2, 2), handed).
		add(check, 1, 6*sec, 7*sec, yes, of(2, 2)).
		add(unlock, 1, 8*sec, 9*sec, yes, of(2, 2)).inherited(freed, 0).
		add(acquire, 2, 10*sec, 11*sec, yes, of(2, 2)), ""},
	{"permits are handed on, and another has them, too", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 2)).add(unlock, 0, 3*sec, 4*sec, yes, of(2, 2)).
		add(acquire, 1, 3*sec, 5*sec, yes, of(2, 2), handed).
		add(acquire, 2, 6*sec, 7*sec, yes, of(1, 2)), "no order"},
	{"permits are handed on while another has more, by its larger limit", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(acquire, 2, 3*sec, 4*sec, yes, of(1, 2)).
		add(unlock, 0, 5*sec, 6*sec, yes, one).add(acquire, 1, 5*sec, 7*sec, yes, one, handed).
		add(check, 1, 8*sec, 9*sec, yes, one).add(check, 2, 8*sec, 9*sec, yes, of(1, 2)), ""},
	{"permits are handed on to two", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, yes, one).
		add(acquire, 1, 3*sec, 5*sec, yes, one, handed).
		add(acquire, 1, 6*sec, 7*sec, yes, one, handed, second), "no order"},
	{"fewer permits are handed on than were taken", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 2)).add(unlock, 0, 3*sec, 4*sec, yes, of(2, 2)).
		add(acquire, 1, 3*sec, 5*sec, yes, of(1, 2), handed), "no order"},
	{"permits are handed on to another client", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, yes, one).
		add(acquire, 2, 3*sec, 5*sec, yes, one, handed), "no order"},
	{"permits are handed on that came back", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, yes, one).freed().
		add(acquire, 1, 5*sec, 6*sec, yes, one, handed), "no order"},

	{"permits come back twice", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, yes, one).freed().
		add(unlock, 0, 5*sec, 6*sec, yes, one), "no order"},
	{"permits are given back that are not held", calm,
		new(past).add(unlock, 0, 5*sec, 6*sec, notHeld, one, never), ""},
	{"permits that are not held come back", calm,
		new(past).add(unlock, 0, 5*sec, 6*sec, yes, one, never), "no order"},
	{"permits are lost before their time", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, lost, one),
		"no order"},
	{"permits are lost, and valid again", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one, short).add(check, 0, 3*sec, 4*sec, no, one).
		add(check, 0, 4*sec, 5*sec, yes, one), "no order"},
	{"permits go back in the background", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, failed, one).
		add(acquire, 2, 5*sec, 6*sec, yes, one), ""},

	{"enough permits for one who is refused", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(1, 3)).add(acquire, 2, 3*sec, 4*sec, no, of(2, 3)).
		asked(refused), "no order"},
	{"too few permits for one who is refused", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 2, 3*sec, 4*sec, no, of(2, 3)).
		asked(refused), ""},
	{"enough permits for one who is refused after others", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, yes, one).freed().
		add(acquire, 2, 5*sec, 6*sec, no, one).asked(refused), "no order"},
	{"too few permits for one who is refused while they are handed on", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(unlock, 0, 3*sec, 4*sec, yes, one).
		add(acquire, 2, 4200*ms, 4300*ms, no, one).asked(refused).
		add(acquire, 1, 3500*ms, 5*sec, yes, one, handed), ""},
	{"enough permits for one who is refused since others of his client wait", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 3, 3*sec, 9*sec, failed, of(2, 3)).asked(refused).
		add(acquire, 2, 4*sec, 5*sec, no, of(1, 3)), ""},
	{"enough permits for one who is refused since others wait elsewhere", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 1, 3*sec, 9*sec, failed, of(2, 3)).asked(refused).
		add(acquire, 2, 4*sec, 5*sec, no, of(1, 3)).asked(refused), "no order"},
	{"what nobody heard of keeps permits", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed, one).asked(unknown).
		add(acquire, 2, 5*sec, 6*sec, no, one).asked(refused), ""},
	{"what was refused keeps permits", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, failed, one).asked(refused).
		add(acquire, 2, 5*sec, 6*sec, no, one).asked(refused), "no order"},

	{"so many are available", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 5)).
		add(available, 2, 3*sec, 4*sec, yes, of(0, 5), counts(3)).
		add(unlock, 0, 5*sec, 6*sec, yes, of(2, 5)).freed().
		add(available, 2, 7*sec, 8*sec, yes, of(0, 5), counts(5)), ""},
	{"more are available than there are", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 5)).
		add(available, 2, 3*sec, 4*sec, yes, of(0, 5), counts(4)), "no order"},
	{"fewer are available than there are", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 5)).
		add(available, 2, 3*sec, 4*sec, yes, of(0, 5), counts(2)), "no order"},
	{"a permit doesn't come back", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 5)).add(unlock, 0, 3*sec, 4*sec, yes, of(2, 5)).
		freed().
		add(available, 2, 5*sec, 6*sec, yes, of(0, 5), counts(4)), "no order"},
	{"so many are available while one takes some", calm, new(past).
		add(acquire, 0, 1*sec, 9*sec, yes, of(2, 5)).
		add(available, 2, 3*sec, 4*sec, yes, of(0, 5), counts(3)).
		add(available, 3, 3*sec, 4*sec, yes, of(0, 5), counts(5)), ""},

	{"there are more permits from now on", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(10, 10)).
		add(acquire, 2, 3*sec, 4*sec, yes, of(10, 20)).
		add(check, 0, 5*sec, 6*sec, yes, of(10, 10)).add(check, 2, 5*sec, 6*sec, yes, of(10, 20)).
		add(available, 3, 7*sec, 8*sec, yes, of(0, 10), counts(0)).
		add(available, 3, 7*sec, 8*sec, yes, of(0, 25), counts(5)), ""},
	{"there are more permits for some only", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(10, 20)).
		add(acquire, 2, 3*sec, 4*sec, yes, of(1, 10)), "no order"},
	{"as many permits as the store was told", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 2, 3*sec, 4*sec, yes, of(1, 0)),
		""},
	{"more permits than the store was told", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 2, 3*sec, 4*sec, yes, of(2, 0)),
		"no order"},
	{"nobody has said how many permits there are", calm,
		new(past).add(acquire, 2, 3*sec, 4*sec, untold, of(2, 0)), ""},
	{"nobody has said how many permits there are, to one who asks", calm,
		new(past).add(available, 2, 3*sec, 4*sec, untold, of(0, 0)), ""},
	{"nobody is known to have said how many permits there are", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 2, 3*sec, 4*sec, untold, of(1, 0)), "no order"},
	{"the caller is not known to have said how many permits there are", calm,
		new(past).add(acquire, 2, 3*sec, 4*sec, untold, of(2, 3)), "no order"},
	{"too many permits", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 2, 3*sec, 4*sec, tooMany, of(4, 0)), ""},
	{"not too many permits", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).
		add(acquire, 2, 3*sec, 4*sec, tooMany, of(3, 0)), "no order"},

	{"a lease of permits runs out", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one, short).add(acquire, 2, 3*sec, 4*sec, yes, one), ""},
	{"a lease of permits runs out early", calm, new(past).
		add(acquire, 0, 1*sec, 1100*ms, yes, one, short).
		add(acquire, 2, 1200*ms, 1300*ms, yes, one), "no order"},
	{"a lease of permits runs out late", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one, short).add(acquire, 2, 4*sec, 5*sec, no, one).
		asked(refused), "no order"},
	{"permits that are renewed end", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(acquire, 2, 30*sec, 40*sec, yes, one),
		"no order"},
	{"permits that could not be renewed end", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(acquire, 2, 30*sec, 40*sec, yes, one).
		add(unlock, 0, 41*sec, 42*sec, lost, one), ""},
	{"permits are wiped", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(wipe, 0, 3*sec, 4*sec, yes).
		add(acquire, 2, 5*sec, 6*sec, yes, one).
		add(check, 0, 7*sec, 8*sec, yes, one).add(unlock, 0, 9*sec, 10*sec, lost, one), ""},
	{"permits are wiped, and nobody is ever told", Rules{}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, one).add(wipe, 0, 3*sec, 4*sec, yes).
		add(check, 0, 17*sec, 18*sec, yes, one), "no order"},

	{"permits are handed to one who is granted others, which go back, and are wiped later", calm,
		new(past).
			add(acquire, 0, 1*sec, 2*sec, yes, of(1, 2)).
			add(unlock, 0, 3*sec, 4*sec, yes, of(1, 2)).
			add(acquire, 1, 3*sec, 5*sec, yes, of(1, 2)).takenBack(6*sec).renewed(0, 9*sec).
			add(wipe, 0, 10*sec, 11*sec, yes).add(check, 1, 17*sec, 18*sec, yes, of(1, 2)), ""},
	{"permits are granted, go back, and are wiped later", calm, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(1, 2)).add(unlock, 0, 3*sec, 4*sec, yes, of(1, 2)).
		freed().
		add(acquire, 1, 5*sec, 6*sec, yes, of(1, 2)).takenBack(7*sec).renewed(0, 9*sec).
		add(wipe, 0, 10*sec, 11*sec, yes).add(check, 1, 17*sec, 18*sec, yes, of(1, 2)), "no order"},

	{"permits come back for one who waits", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 1, 1*sec, 2*sec, yes, of(1, 3)).
		add(unlock, 0, 3*sec, 4*sec, yes, of(2, 3)).freed().
		add(acquire, 2, 2*sec, 9*sec, failed, of(2, 3)), "waited"},
	{"too few permits come back for one who waits", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(2, 3)).add(acquire, 1, 1*sec, 2*sec, yes, of(1, 3)).
		add(unlock, 1, 3*sec, 4*sec, yes, of(1, 3)).freed().
		add(acquire, 2, 2*sec, 9*sec, failed, of(2, 3)), ""},
	{"permits come back for one who waits behind another", Rules{Prompt: sec / 2}, new(past).
		add(acquire, 0, 1*sec, 2*sec, yes, of(3, 3)).add(acquire, 1, 1*sec, 2*sec, yes, of(1, 4)).
		add(acquire, 2, 1*sec, 9*sec, failed, of(3, 3)).asked(refused).
		add(acquire, 3, 2*sec, 9*sec, failed, of(1, 3)).
		add(unlock, 0, 3*sec, 4*sec, yes, of(3, 3)).freed(), ""},
}

// In a large group the check finds which user is too many, and since when.
func TestCrowding(t *testing.T) {
	for _, test := range []struct {
		name string
		all  []belief
		ok   bool
	}{
		{"nobody", nil, true},
		{"one leaves when another comes",
			[]belief{{from: 1, to: 5, permits: 2, most: 2}, {from: 5, to: 7, permits: 1, most: 2}},
			true},
		{"one leaves after another has come",
			[]belief{{from: 1, to: 5, permits: 2, most: 2}, {from: 4, to: 7, permits: 1, most: 2}},
			false},
		{"the last are too many",
			[]belief{{from: 1, to: time.Second, permits: 1, most: 2},
				{from: 2, to: 3, permits: 1, most: 2}, {from: 4, to: 5, permits: 2, most: 2}},
			false},
		{"one knows of more", []belief{{from: 1, to: 9, permits: 2, most: 2},
			{from: 2, to: 9, permits: 2, most: 4}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := crowding("a", test.all); (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}
