package protocol

import (
	"strings"
	"testing"
	"time"
)

const (
	sec  = time.Second
	half = 30 * sec // a lease, and
	full = 60 * sec // one that is twice as long
)

// made returns a promise that was granted at a request that was sent at 0.
func made(lease time.Duration, renewed bool) *Promise {
	p := new(Promise)
	p.Want(lease, renewed)
	p.Sent(0, lease)
	p.Granted(0, lease)
	return p
}

// A holder relies on its lease until the instants below, after these requests and answers.
func TestUntil(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(p *Promise)
		want Instant
	}{
		"granted": {func(p *Promise) {}, Promised(half)},
		"renewed": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.RenewalOver()
			p.RenewalGranted(sec, half)
		}, sec + Promised(half)},
		"an answer to an older renewal": {func(p *Promise) {
			p.RenewalGranted(5*sec, half)
			p.RenewalGranted(sec, half)
		}, 5*sec + Promised(half)},
		"a re-entry that asked for longer": {func(p *Promise) {
			p.StepSent(sec, full, full)
			p.StepOver()
			p.StepGranted(sec, half, full)
		}, sec + Promised(full)},
		"a re-entry without an answer may come late, and shorten what a renewal got": {func(p *Promise) {
			p.StepSent(sec, half, half)
			p.StepOver()
			p.Unanswered(half)
			p.RenewalGranted(2*sec, full)
		}, 2*sec + Promised(half)},
		"the shortest of two requests without an answer": {func(p *Promise) {
			p.Unanswered(full)
			p.Unanswered(half)
			p.Unanswered(full)
			p.RenewalGranted(2*sec, full)
		}, 2*sec + Promised(half)},
		"a renewal under way comes after a longer lease was granted": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.StepSent(2*sec, full, full)
			p.StepOver()
			p.StepGranted(2*sec, full, full)
		}, 2*sec + Promised(half)},
		"a renewal that has an answer doesn't": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.RenewalOver()
			p.StepSent(2*sec, full, full)
			p.StepOver()
			p.StepGranted(2*sec, full, full)
		}, 2*sec + Promised(full)},
		"one of two renewals has an answer": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.RenewalSent(2*sec, half, half)
			p.RenewalOver()
			p.StepSent(3*sec, full, full)
			p.StepOver()
			p.StepGranted(3*sec, full, full)
		}, 3*sec + Promised(half)},
		"the shorter of two renewals comes": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.RenewalSent(sec, full, full)
			p.Lengthens(2 * full)
			p.RenewalGranted(2*sec, 2*full)
		}, 2*sec + Promised(half)},
		"the shorter has an answer, and then the longer is sent": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.RenewalOver()
			p.RenewalSent(sec, full, full)
			p.Lengthens(2 * full)
			p.RenewalGranted(2*sec, 2*full)
		}, 2*sec + Promised(full)},
		"the lock is to stay taken for longer than a renewal under way asks for": {func(p *Promise) {
			p.RenewalSent(sec, half, half)
			p.Lengthens(full)
			p.Keep(2*sec+full, sec)
			p.RenewalGranted(2*sec, full)
		}, 2*sec + Promised(half)},
		"the lock is to stay taken for longer than a re-entry under way asks for": {func(p *Promise) {
			p.StepSent(sec, half, half)
			p.Lengthens(full)
			p.Keep(2*sec+full, sec)
			p.RenewalGranted(2*sec, full)
		}, 2*sec + Promised(half)},
		"it is to stay taken for no longer": {func(p *Promise) {
			p.StepSent(sec, full, full)
			p.Lengthens(full)
			p.RenewalGranted(2*sec, full)
		}, 2*sec + Promised(full)},
		"two reads are re-entered at once, which shortens neither": {func(p *Promise) {
			p.StepSent(sec, half, half)
			p.StepSent(sec, full, full)
			p.StepOver()
			p.StepGranted(sec, full, full)
		}, sec + Promised(full)},
		"a re-entry that is over doesn't matter": {func(p *Promise) {
			p.StepSent(sec, half, half)
			p.StepOver()
			p.Lengthens(full)
			p.RenewalGranted(2*sec, full)
		}, 2*sec + Promised(full)},
		"a renewal that was sent before a partial release left less": {func(p *Promise) {
			p.PartialRelease(5*sec, true)
			p.RenewalGranted(5*sec, full)
		}, Promised(half)},
		"one that was sent after it": {func(p *Promise) {
			p.PartialRelease(5*sec, true)
			p.RenewalGranted(5*sec+1, full)
		}, 5*sec + 1 + Promised(full)},
		"gone":               {func(p *Promise) { p.Gone(sec) }, sec},
		"gone, after it was": {func(p *Promise) { p.Gone(full) }, Promised(half)},
		"not to stay taken any more": {func(p *Promise) {
			p.Keep(10*full, 0)
			p.Granted(sec, 10*full)
			p.Forgo(2 * sec)
		}, 2*sec + Promised(half)},
		"never to stay taken": {func(p *Promise) {
			p.Granted(sec, 10*full)
			p.Forgo(2 * sec)
		}, sec + Promised(10*full)},
		"given to the first in line": {func(p *Promise) {
			*p = Promise{}
			p.Want(half, true)
			p.Given(sec, 3*sec, sec+Promised(half))
		}, sec + Promised(3*sec)},
		"given for longer than it was wanted": {func(p *Promise) {
			*p = Promise{}
			p.Want(sec, false)
			p.Given(sec, 3*sec, 2*sec)
		}, 2 * sec},
		"given, and renewed": {func(p *Promise) {
			*p = Promise{}
			p.Want(half, true)
			p.Given(sec, 3*sec, sec+Promised(half))
			p.RenewalGranted(2*sec, half)
		}, 2*sec + Promised(half)},
		"a read instead of a write": {func(p *Promise) {
			p.Granted(10*sec, full)
			p.Becomes(made(half, false), new(Promise), 5*sec+Promised(half))
		}, 5*sec + Promised(half)},
	} {
		p := made(half, true)
		c.do(p)
		if got := p.Until(); got != c.want {
			t.Errorf("%s: relied on until %v, want %v", name, got, c.want)
		}
	}
}

// Asked says what the next request asks for. None asks for less than is promised already.
func TestWhatIsAskedFor(t *testing.T) {
	wantBoth := func(t *testing.T, lease, asked, wantLease, wantAsked time.Duration) {
		t.Helper()
		if lease != wantLease || asked != wantAsked {
			t.Errorf("asks for %v to have %v, want %v and %v", asked, lease, wantAsked, wantLease)
		}
	}
	for name, test := range map[string]func(t *testing.T){
		"a renewal": func(t *testing.T) {
			lease, asked := made(half, true).Renewal(sec)
			wantBoth(t, lease, asked, half, half)
		},
		"a renewal of a fixed lease": func(t *testing.T) {
			lease, asked := made(half, false).Renewal(10 * sec)
			// 19.7 s are left
			wantBoth(t, lease, asked, 19899*time.Millisecond, 19899*time.Millisecond)
		},
		"a renewal of what stays taken for longer": func(t *testing.T) {
			p := made(half, true)
			p.Keep(full, 0)
			lease, asked := p.Renewal(sec)
			wantBoth(t, lease, asked, full-sec, full-sec)
		},
		"a renewal beside a step that asks for longer": func(t *testing.T) {
			p := made(half, true)
			p.StepSent(sec, full, full)
			lease, asked := p.Renewal(2 * sec)
			wantBoth(t, lease, asked, half, full)
		},
		"a renewal beside two": func(t *testing.T) {
			p := made(half, true)
			p.StepSent(sec, full, full)
			p.StepSent(sec, half, half)
			p.StepOver()
			lease, asked := p.Renewal(2 * sec)
			wantBoth(t, lease, asked, half, full)
		},
		"a renewal after it": func(t *testing.T) {
			p := made(half, true)
			p.StepSent(sec, full, full)
			p.StepSent(sec, half, half)
			p.StepOver()
			p.StepOver()
			lease, asked := p.Renewal(2 * sec)
			wantBoth(t, lease, asked, half, half)
		},
		"a partial release": func(t *testing.T) {
			lease, asked := made(half, true).PartialRelease(10*sec, false)
			wantBoth(t, lease, asked, half, half)
		},
		"a partial release of what was granted for longer": func(t *testing.T) {
			p := made(half, true)
			p.Granted(0, full)
			lease, asked := p.PartialRelease(0, false)
			wantBoth(t, lease, asked, half, full)
		},
		"a partial release that ends the renewal": func(t *testing.T) {
			p := made(half, true)
			lease, asked := p.PartialRelease(10*sec, true)
			wantBoth(t, lease, asked, 19899*time.Millisecond, 19899*time.Millisecond)
			if p.Renewed() {
				t.Error("it goes on being renewed")
			}
		},
		"a re-entry": func(t *testing.T) {
			p := made(half, true)
			lease, asked := p.Reentry(sec, full)
			wantBoth(t, lease, asked, half, half)
			p.EndRenewal(10 * sec)
			lease, asked = p.Reentry(11*sec, sec)
			// 18.7 s are left
			wantBoth(t, lease, asked, 18889*time.Millisecond, 18889*time.Millisecond)
			lease, asked = p.Reentry(11*sec, full)
			wantBoth(t, lease, asked, full, full)
			p.Keep(10*full, 0)
			lease, asked = p.Reentry(0, full)
			wantBoth(t, lease, asked, full, 10*full)
		},
	} {
		t.Run(name, test)
	}
}

// These are the questions of the rest of a client.
func TestWhatIsKnown(t *testing.T) {
	asks := []struct {
		what string
		ask  func(p *Promise) bool
	}{
		{"passes", func(p *Promise) bool { return p.Passes(2 * sec) }},
		{"goes on", (*Promise).GoesOn},
		{"outlives", (*Promise).Outlives},
		{"stays", (*Promise).Stays},
		{"strays", (*Promise).Strays},
	}
	for name, c := range map[string]struct {
		renewed bool
		do      func(p *Promise)
		want    string // of these, what is so
	}{
		"a renewed claim":  {true, func(p *Promise) {}, "passes, goes on"},
		"a fixed lease":    {false, func(p *Promise) {}, ""},
		"its time is over": {true, func(p *Promise) { p.Gone(2 * sec) }, "goes on"},
		"its time isn't over": {true, func(p *Promise) { p.Gone(2*sec + 1) },
			"passes, goes on"},
		"a request without an answer": {true, func(p *Promise) { p.Unanswered(half) }, "goes on"},
		"an attempt without an answer": {true, func(p *Promise) { p.Stray() },
			"passes, goes on, strays"},
		"a late answer": {false, func(p *Promise) { p.StrayUntil(full) },
			"outlives, strays"},
		"a late answer, a little later": {false, func(p *Promise) { p.StrayUntil(half) }, "strays"},
		"to stay taken": {true, func(p *Promise) { p.Keep(full, 0) },
			"goes on, stays"},
		"not to stay taken any more": {true, func(p *Promise) { p.Keep(full, 0); p.Forgo(sec) },
			"passes, goes on"},
		"a renewal of a fixed lease from a line": {false, func(p *Promise) {
			p.Given(0, half, full)
		},
			"goes on"},
		"renewed since": {false,
			func(p *Promise) { p.Given(0, sec, full); p.RenewalGranted(sec, half) }, ""},
	} {
		p := made(half, c.renewed)
		c.do(p)
		var is []string
		for _, a := range asks {
			if a.ask(p) {
				is = append(is, a.what)
			}
		}
		if got := strings.Join(is, ", "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A take-back ends with an answer to a release that was sent when no request could bring the claim
// about any more, or when the store hasn't answered for long.
func TestTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		stray, answered bool
		sent            Instant
		want            bool
	}{
		"nothing is under way":           {false, true, 0, true},
		"no answer":                      {false, false, half, false},
		"a stray":                        {true, true, half - 1, false},
		"the stray's time is over":       {true, true, half, true},
		"it is, without an answer":       {true, false, half, false},
		"no answer for almost a minute":  {true, false, half + time.Minute - 1, false},
		"no answer for more than that":   {true, false, half + time.Minute, true},
		"nor where nothing is under way": {false, false, half + time.Minute, true},
	} {
		p := made(half, true)
		if c.stray {
			p.Stray()
		}
		if got := p.TakenBack(c.sent, c.answered); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	p := made(time.Hour, true)
	if p.TakenBack(time.Hour+2*time.Minute, false) || !p.TakenBack(2*time.Hour, false) {
		t.Error("a long lease is waited for once more")
	}
}

// A write that becomes a read leaves to the write what is under way for that.
func TestBecomes(t *testing.T) {
	p, read, rest := made(full, true), made(half, false), new(Promise)
	p.Stray()
	p.Becomes(read, rest, Promised(half))
	if p.Horizon() != half || p.Strays() || !p.Renewed() || p.Lease() != full {
		t.Errorf("the read: horizon %v, strays %v, lease %v", p.Horizon(), p.Strays(), p.Lease())
	}
	if rest.Horizon() != full || !rest.Strays() || rest.Lease() != full {
		t.Errorf("the write: horizon %v, strays %v", rest.Horizon(), rest.Strays())
	}
}

func TestConfirmed(t *testing.T) {
	p := made(half, true)
	p.RenewalGranted(5*sec, half)
	if got := p.Confirmed(sec); got != 5*sec {
		t.Errorf("confirmed at %v, want 5s", got)
	}
	p.Keep(full, p.Confirmed(sec))
	p.RenewalGranted(7*sec, full)
	if got := p.Confirmed(sec); got != 7*sec {
		t.Errorf("what stays taken is confirmed at %v, want 7s", got)
	}
	if got := made(half, true).Confirmed(sec); got != sec {
		t.Errorf("confirmed at %v, before it began", got)
	}
}

func TestEndsBefore(t *testing.T) {
	short, long, renewed := made(half, false), made(full, false), made(sec, true)
	for _, c := range []struct {
		a, b *Promise
		want bool
	}{
		{short, long, true}, {long, short, false}, {short, renewed, true}, {renewed, short, false},
	} {
		if c.a.EndsBefore(c.b) != c.want {
			t.Errorf("one until %v before one until %v: not %v", c.a.Until(), c.b.Until(), c.want)
		}
	}
}

// Renewals aren't counted any more when there are very many: those without an answer are never
// forgotten.
func TestManyRenewals(t *testing.T) {
	p := made(half, true)
	for range manyRenewals + 10 {
		p.RenewalSent(0, half, half)
	}
	for range manyRenewals + 9 {
		p.RenewalOver()
	}
	p.Lengthens(full)
	p.Granted(sec, full)
	if got, want := p.Until(), sec+Promised(half); got != want {
		t.Errorf("relied on until %v, want %v: a renewal is under way", got, want)
	}
}

// The next renewal asks with the shortest lease that can be counted on.
func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(p *Promise)
		most time.Duration
		want Instant
	}{
		"a third of the lease": {func(p *Promise) {}, half, 10*sec - 10*sec%(half/16)},
		"of the longest":       {func(p *Promise) {}, 3 * sec, sec - sec%(3*sec/16)},
		"of a request in doubt": {func(p *Promise) { p.Unanswered(3 * sec) }, half,
			sec - sec%(3*sec/16)},
		"of what it was given for": {func(p *Promise) { p.Given(0, 3*sec, half) }, half,
			sec - sec%(3*sec/16)},
		"no later than the deadline": {func(p *Promise) { p.Gone(2 * sec) }, half, 2 * sec},
	} {
		p := made(half, true)
		c.do(p)
		if got := p.Next(0, 3, c.most); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
