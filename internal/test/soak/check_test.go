package main

import (
	"math"
	"testing"
	"time"
)

const (
	slack   = 10 * time.Millisecond
	forever = time.Duration(math.MaxInt64)
)

// aHold returns a hold of the lock "a" with a lease of 100 ms.
func aHold(visit uint64, asked, in, until time.Duration) hold {
	const ms = time.Millisecond
	return hold{
		ID: visit, Visit: visit, Name: "a", Asked: asked * ms, In: in * ms, Until: until * ms,
		Lease: 100 * ms,
	}
}

func with(h hold, change func(*hold)) hold {
	change(&h)
	return h
}

func replacing(h hold, version uint64) hold {
	return with(h, func(h *hold) { h.Read = version })
}

func reading(h hold) hold {
	return with(h, func(h *hold) { h.Shared = true })
}

// seeing makes h a read hold during which a version is replaced.
func seeing(h hold, version uint64) hold {
	return with(reading(h), func(h *hold) { h.Saw = version })
}

// having makes h a hold of n permits of limit.
func having(h hold, n, limit int) hold {
	return with(h, func(h *hold) { h.Shared, h.Permits, h.Limit = true, n, limit })
}

func number(h hold, n uint64) hold {
	return with(h, func(h *hold) { h.Number = n })
}

func TestChecker(t *testing.T) {
	const ms = time.Millisecond
	named := func(h hold, name string) hold { return with(h, func(h *hold) { h.Name = name }) }
	fixed := func(h hold) hold { return with(h, func(h *hold) { h.Fixed = true }) }
	reentered := func(h hold) hold { return with(h, func(h *hold) { h.Reentered = true }) }
	for _, test := range []struct {
		name   string
		losses []*loss
		holds  []hold
		want   int
	}{
		{"one after the other", nil,
			[]hold{aHold(1, 0, 1, 5), aHold(2, 0, 5, 9), aHold(3, 0, 9, 12)}, 0},
		{"two at a time", nil, []hold{aHold(1, 0, 1, 5), aHold(2, 0, 4, 9)}, 1},
		{"two at a time, told late", nil,
			[]hold{aHold(2, 0, 4, 9), aHold(3, 0, 9, 12), aHold(1, 0, 1, 5)}, 1},
		{"one inside the other", nil, []hold{aHold(1, 0, 1, 9), aHold(2, 0, 4, 5)}, 1},
		{"a check that comes later", nil,
			[]hold{aHold(1, 0, 1, 2), aHold(2, 0, 4, 0), aHold(1, 0, 1, 5), aHold(2, 0, 4, 6)}, 1},
		{"no check", nil, []hold{aHold(1, 0, 1, 0), aHold(2, 0, 0, 9)}, 0},
		{"two names", nil, []hold{aHold(1, 0, 1, 5), named(aHold(2, 0, 4, 9), "b")}, 0},
		{"a name that is forced", nil,
			[]hold{named(aHold(1, 0, 1, 5), "forced"), named(aHold(2, 0, 4, 9), "forced")}, 0},
		{"one visit", nil, []hold{aHold(1, 0, 1, 5), with(aHold(2, 0, 4, 9), func(h *hold) {
			h.Visit = 1
		})}, 0},

		{"all increments", nil, []hold{replacing(aHold(1, 0, 1, 5), 7),
			replacing(aHold(2, 0, 5, 9), 8)}, 0},
		{"a lost increment", nil,
			[]hold{replacing(aHold(1, 0, 1, 5), 7), replacing(aHold(2, 0, 5, 9), 7)}, 1},

		{"two read", nil, []hold{reading(aHold(1, 0, 1, 5)), reading(aHold(2, 0, 4, 9))}, 0},
		{"one reads while another writes", nil,
			[]hold{reading(aHold(1, 0, 1, 5)), aHold(2, 0, 4, 9)}, 1},
		{"one writes while another reads", nil,
			[]hold{aHold(1, 0, 1, 5), reading(aHold(2, 0, 4, 9))}, 1},
		{"nothing is replaced while somebody reads", nil,
			[]hold{reading(aHold(1, 0, 1, 5)), replacing(aHold(2, 0, 6, 9), 7)}, 0},
		{"what somebody reads is replaced", nil,
			[]hold{seeing(aHold(1, 0, 1, 5), 7), replacing(aHold(2, 0, 6, 9), 7)}, 1},
		{"what somebody reads was replaced", nil,
			[]hold{replacing(aHold(2, 0, 6, 9), 7), seeing(aHold(1, 0, 1, 5), 7)}, 1},
		{"what somebody reads is replaced by himself", nil,
			[]hold{seeing(aHold(1, 0, 1, 5), 7),
				with(replacing(aHold(2, 0, 6, 9), 7), func(h *hold) { h.Visit = 1 })}, 0},
		{"what somebody reads is replaced after a loss", []*loss{{20 * ms, 21 * ms, 22 * ms}},
			[]hold{seeing(aHold(1, 0, 1, 50), 7), replacing(aHold(2, 40, 60, 70), 7)}, 0},

		{"as many permits as there are", nil,
			[]hold{having(aHold(1, 0, 1, 9), 2, 3), having(aHold(2, 0, 4, 9), 1, 3),
				having(aHold(3, 0, 9, 12), 2, 3)}, 0},
		{"more permits than there are", nil,
			[]hold{having(aHold(1, 0, 1, 9), 2, 3), having(aHold(2, 0, 4, 9), 2, 3)}, 1},
		{"more permits than there are, of three", nil,
			[]hold{having(aHold(1, 0, 1, 9), 1, 2), having(aHold(2, 0, 3, 6), 1, 2),
				having(aHold(3, 0, 5, 9), 1, 2)}, 1},
		{"more permits than there are, told late", nil,
			[]hold{having(aHold(2, 0, 3, 6), 1, 2), having(aHold(3, 0, 5, 9), 1, 2),
				having(aHold(1, 0, 1, 9), 1, 2)}, 1},
		{"never more permits than there are, of three", nil,
			[]hold{having(aHold(1, 0, 1, 9), 1, 2), having(aHold(2, 0, 3, 5), 1, 2),
				having(aHold(3, 0, 5, 9), 1, 2)}, 0},
		{"permits that nobody has checked", nil,
			[]hold{having(aHold(1, 0, 1, 9), 2, 3), having(aHold(2, 0, 4, 0), 2, 3)}, 0},
		{"more permits after a loss", []*loss{{20 * ms, 21 * ms, 22 * ms}},
			[]hold{having(aHold(1, 0, 1, 50), 2, 3), having(aHold(2, 40, 45, 60), 2, 3)}, 0},
		{"more permits from now on", nil,
			[]hold{having(aHold(1, 0, 1, 9), 2, 2), having(aHold(2, 0, 4, 9), 2, 4)}, 0},

		{"numbers grow", nil, []hold{number(aHold(1, 0, 1, 5), 7), number(aHold(2, 4, 6, 9), 8)},
			0},
		{"numbers don't grow", nil,
			[]hold{number(aHold(1, 0, 1, 5), 7), number(aHold(2, 4, 6, 9), 6)}, 1},
		{"a number comes again", nil,
			[]hold{number(aHold(1, 0, 1, 5), 7), number(aHold(2, 0, 6, 9), 7)}, 1},
		{"a smaller number that was perhaps given out before", nil,
			[]hold{number(aHold(1, 0, 5, 6), 7), number(aHold(2, 0, 7, 9), 6)}, 0},
		{"numbers and none", nil, []hold{number(aHold(1, 0, 1, 5), 7), aHold(2, 4, 6, 9)}, 0},

		{"a fixed lease", nil, []hold{fixed(aHold(1, 0, 1, 99))}, 0},
		{"a fixed lease that is outlived", nil, []hold{fixed(aHold(1, 0, 1, 102))}, 1},
		{"a fixed lease that was prolonged", nil, []hold{reentered(fixed(aHold(1, 0, 1, 102)))}, 0},
		{"a lease that is renewed", nil, []hold{aHold(1, 0, 1, 102)}, 0},

		{"a loss between two", []*loss{{20 * ms, 21 * ms, 22 * ms}},
			[]hold{aHold(1, 0, 1, 50), aHold(2, 40, 45, 60)}, 0},
		{"a loss that is not over", []*loss{{20 * ms, 21 * ms, forever}},
			[]hold{aHold(1, 0, 1, 50), aHold(2, 40, 45, 60)}, 0},
		{"a loss before both", []*loss{{20 * ms, 21 * ms, 22 * ms}},
			[]hold{aHold(1, 40, 41, 60), aHold(2, 40, 45, 60)}, 1},
		{"a loss perhaps before both", []*loss{{20 * ms, 21 * ms, 22 * ms}},
			[]hold{aHold(1, 30, 41, 60), aHold(2, 40, 45, 60)}, 0},
		{"a loss after both", []*loss{{50 * ms, 51 * ms, 52 * ms}},
			[]hold{aHold(1, 40, 41, 60), aHold(2, 40, 45, 60)}, 1},
		{"told of a loss", []*loss{{20 * ms, 21 * ms, 22 * ms}}, []hold{aHold(1, 0, 1, 121)}, 0},
		{"not told of a loss", []*loss{{20 * ms, 21 * ms, 22 * ms}}, []hold{aHold(1, 0, 1, 122)},
			1},
		{"renewed while it is being lost", []*loss{{20 * ms, forever, forever}},
			[]hold{aHold(1, 0, 1, 122)}, 0},
		{"acquired in another life", []*loss{{20 * ms, 21 * ms, 22 * ms}},
			[]hold{reentered(aHold(1, 0, 1, 122))}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newChecker("forced", slack, func(text string) { t.Log(text) })
			c.losses = test.losses
			for _, h := range test.holds {
				c.note(event{Hold: &h})
			}
			if got := c.counted().Violations; got != test.want {
				t.Errorf("%d violations, want %d", got, test.want)
			}
		})
	}
}

func TestCheckerForgets(t *testing.T) {
	c := newChecker("", 0, func(text string) { t.Error(text) })
	const n = 1000
	for i := range time.Duration(n) {
		h := replacing(aHold(uint64(i+1), 0, 1000*i, 1000*i+500), uint64(i+1))
		c.note(event{Hold: &h})
	}
	l := c.ledgers["a"]
	if most := 61; len(l.holds) > most || len(l.byID) > most || len(l.read) > most {
		t.Errorf("%d holds, %d ids and %d versions are remembered, want at most %d", len(l.holds),
			len(l.byID), len(l.read), most)
	}
	if got := c.counted(); got.Acquisitions != n || got.Increments != n {
		t.Errorf("counted %+v, want %d of each", got, n)
	}
}
