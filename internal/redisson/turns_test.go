package redisson

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// By an observation of the server's clock, since translates the time in a grant to an instant that
// isn't later than the grant.
func TestSince(t *testing.T) {
	ours, theirs := time.Now(), time.UnixMilli(1_700_000_000_000)
	seen := observation{ours, theirs}
	for name, c := range map[string]struct {
		seen      observation
		at, heard time.Duration // since the observation, by the clock of each
		want      time.Duration // or refused
	}{
		"at once": {seen, 0, time.Millisecond, -time.Millisecond},
		"soon": {
			seen, 500 * time.Millisecond, 501 * time.Millisecond, 494 * time.Millisecond,
		},
		"heard late": {
			seen, 500 * time.Millisecond, 900 * time.Millisecond, 494 * time.Millisecond,
		},
		"the server's clock is faster": {
			seen, 1010 * time.Millisecond, time.Second, 998900 * time.Microsecond,
		},
		"much later": {
			seen, time.Minute, time.Minute + time.Second, 59*time.Second + 399*time.Millisecond,
		},
		"nothing was seen": {
			observation{}, 500 * time.Millisecond, 501 * time.Millisecond, refused,
		},
		"given before": {
			seen, -100 * time.Millisecond, time.Second, -102 * time.Millisecond,
		},
		"its clock went far back": {
			seen, -time.Hour, time.Second, -time.Hour - 36*time.Second - time.Millisecond,
		},
		"its clock went forward": {
			seen, 1012 * time.Millisecond, time.Second, refused,
		},
		"its clock went far forward": {seen, time.Hour, time.Second, refused},
		"its clock went back, and it is later": {
			seen, 100 * time.Millisecond, time.Second, 98 * time.Millisecond,
		},
	} {
		got, ok := c.seen.since(theirs.Add(c.at), ours.Add(c.heard))
		if ok != (c.want != refused) || ok && got.Sub(ours) != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got.Sub(ours), ok, c.want)
		}
	}
}

const refused = -time.Hour // a translation

// However fast the clocks run, to a hundredth, and whenever things are sent, done and heard: the
// instant isn't later than the grant. So it is if the server's clock was put back meanwhile, and if
// it was put forward by more than a message was late.
func TestSinceIsNeverLate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(what string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most*1000).Draw(rt, what)) * time.Microsecond
		}
		start, epoch := time.Now(), time.UnixMilli(1_700_000_000_000)
		rate := rapid.Float64Range(1/1.01, 1.01).Draw(rt, "rate") // of the server's clock by ours
		step := time.Duration(0)
		server := func(at time.Duration) time.Time { // to whole milliseconds
			return epoch.Add(time.Duration(float64(at)*rate) + step).Truncate(time.Millisecond)
		}
		looked := ms("looked", 1000)
		seen := observation{start, server(looked)}
		given := looked + ms("given", 5000) - ms("before", 1000)
		// nothing is heard before the question was sent that is heard after its answer
		late := max(ms("late", 2000), -given)
		switch rapid.IntRange(0, 2).Draw(rt, "step") {
		case 1:
			step = -ms("back", 10000)
		case 2:
			// or the observation is of a clock that had been put forward already
			given = max(given, looked)
			step = looked + late + max(given, -given)/40 + late/50 + 2*time.Millisecond +
				ms("forward", 10000)
		}
		got, ok := seen.since(server(given), start.Add(given+late))
		switch {
		case ok && got.After(start.Add(given)):
			rt.Fatalf("given after %v, and it seems to be %v", given, got.Sub(start))
		case !ok && step == 0:
			rt.Fatalf("given after %v: refused", given)
		case ok && step > 0:
			rt.Fatalf("the clock went %v forward, and nobody noticed", step)
		case ok && step == 0 && start.Add(given).
			Sub(got) > looked+max(given, -given)/40+looked/40+3*time.Millisecond:
			rt.Fatalf("given after %v, and it seems to be %v", given, got.Sub(start))
		}
	})
}

// An observation is replaced when it is old, or wrong.
func TestSaw(t *testing.T) {
	start, epoch := time.Now(), time.UnixMilli(1_700_000_000_000)
	after := func(ours, theirs time.Duration) observation {
		return observation{start.Add(ours), epoch.Add(theirs)}
	}
	for name, c := range map[string]struct {
		before, now observation
		replaced    bool
	}{
		"the first": {observation{}, after(0, 0), true},
		"one that is as good": {
			after(-100*time.Millisecond, 0), after(-50*time.Millisecond, 50*time.Millisecond),
			false,
		},
		"the next": {after(-time.Second, 0), after(0, time.Second), true},
		"after the clock went back": {
			after(-100*time.Millisecond, 0), after(-50*time.Millisecond, -time.Minute), false,
		},
		"after it went far forward": {
			after(-100*time.Millisecond, 0), after(-50*time.Millisecond, time.Hour), true,
		},
		"of a grant that was overdue": {
			after(-100*time.Millisecond, 0), after(-90*time.Millisecond, 10*time.Millisecond),
			false,
		},
	} {
		h := &hearing{session: &session{}}
		tt := &h.session.turns
		tt.join(h, "")
		tt.lines[""].seen = c.before
		tt.saw("", c.now)
		if got := tt.lines[""].seen == c.now; got != c.replaced {
			t.Errorf("%s: replaced %v", name, got)
		}
	}
}

// A grant is published on the channel of the owner's client, and clientOf knows that client.
func TestClientOf(t *testing.T) {
	for owner, want := range map[string]string{
		"id:7": "id", "a:b:7": "a:b", "a": "a", "": "", ":7": "", "a:": "a",
		"11111111-1111-1111-1111-111111111111:31": "11111111-1111-1111-1111-111111111111",
	} {
		if got := clientOf(owner); got != want {
			t.Errorf("%q is a client's %q, want %q", owner, got, want)
		}
		if got := outOfLine(inLine(owner)); got != owner {
			t.Errorf("%q comes out of line as %q", owner, got)
		}
	}
	lines(t, func(t *testing.T, s lineStore) { // and the script says the same
		for i, owner := range []string{"id:7", "a:b:7", "a", ":7", "a:", "sp:1 2", "x:fair",
			"{x}:1"} {
			s.take(lineStep{"lock", "Z:1", 10, 0})
			s.take(lineStep{"lock", owner, 10, 5})
			s.take(lineStep{"unlock", "Z:1", 1, 0})
			if got := s.published(); got != "gives "+owner {
				t.Errorf("%d: %q", i, got)
			}
			s.take(lineStep{"unlock", owner, 1, 0})
		}
	})
}

func TestGranted(t *testing.T) {
	for message, want := range map[string]string{
		"1700000000000 1000 1 na:1:fair":     `"n" "a:1:fair" 1700000000000 1s`,
		"1700000000000 1000 3 n nb c:1:fair": `"n n" "b c:1:fair" 1700000000000 1s`,
		"5 0 0 a":                            `"" "a" 5 0s`,
		"":                                   "", "0": "", "1 2 3": "", "1 2 3 ab": "",
		"1 2 -1 ab": "", "1 -2 1 ab": "", "x 2 1 ab": "", "1 x 1 ab": "", "1 2 x ab": "",
		"99999999999999999999 1 1 ab": "",
	} {
		got := ""
		if g, ok := ParseGranted(message); ok {
			got = fmt.Sprintf("%q %q %d %v", g.Name, g.Owner, g.At.UnixMilli(), g.Lease)
		}
		if got != want {
			t.Errorf("%q means %s, want %s", message, got, want)
		}
	}
}
