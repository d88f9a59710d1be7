package contract

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// realTime is a harness of a store in whose cases time is real.
var realTime = Harness{NewStore: func(*testing.T) Store {
	b := membackend.New()
	return Store{Backend: func() backend.Backend { return b }}
}}

// standStill has the machine of a case stand still, as far as its pulse can tell.
func (e *env) standStill() { e.ill(func(p *pulse) { p.worst = time.Second }) }

// fillUp has many wait for the processors of a machine, likewise.
func (e *env) fillUp() { e.ill(func(p *pulse) { p.crowd = crowded }) }

func (e *env) ill(f func(p *pulse)) {
	if e.pulse != nil {
		e.pulse.mu.Lock()
		f(e.pulse)
		e.pulse.mu.Unlock()
	}
}

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPulse()
		defer p.end()
		time.Sleep(5 * beat)
		synctest.Wait()
		p.mu.Lock()
		if next := time.Until(p.due); next != beat {
			t.Errorf("the next beat is due in %v; want %v", next, beat)
		}
		p.mu.Unlock()
		if late, _ := p.latest(); late > 0 {
			t.Errorf("a machine that is never late is %v late", late)
		}
		p.mu.Lock()
		p.due = time.Now().Add(-time.Hour)
		p.mu.Unlock()
		if late, _ := p.latest(); late != time.Hour {
			t.Errorf("a beat that has not come for an hour is %v late", late)
		}
		time.Sleep(2 * beat)
		synctest.Wait()
		if late, _ := p.latest(); late < time.Hour {
			t.Errorf("after a beat that was an hour late the worst is %v", late)
		}
	})
}

func TestRunning(t *testing.T) {
	for text, want := range map[string]int{
		"11.90 14.36 14.54 16/193 2924\n": 16, "0.00 0.01 0.05 1/120 7": 1,
		"": 0, "11.90 14.36 14.54": 0, "11.90 14.36 14.54 many 2924": 0,
	} {
		if n := running(text); n != want {
			t.Errorf("%q: %d run, want %d", text, n, want)
		}
	}
}

// A failure while the machine stood still, or was overloaded, is excused if the next attempt
// succeeds.
func TestExcuse(t *testing.T) {
	for name, fail := range map[string]func(e *env){
		"Error":   func(e *env) { e.standStill(); e.Error("wrong") },
		"Errorf":  func(e *env) { e.standStill(); e.Errorf("wrong") },
		"Fatal":   func(e *env) { e.standStill(); e.Fatal("wrong") },
		"Fatalf":  func(e *env) { e.standStill(); e.Fatalf("wrong") },
		"crowded": func(e *env) { e.fillUp(); e.Error("wrong") },
	} {
		runs := 0
		runCases(t, realTime, []testCase{{name: name, run: func(e *env) {
			if runs++; runs < mostRuns {
				fail(e)
			}
		}}})
		if runs != mostRuns {
			t.Errorf("%s: run %d times; want %d", name, runs, mostRuns)
		}
	}
}

// Nothing else is excused, and not for ever.
func TestNoExcuse(t *testing.T) {
	const inProcess = "CONTRACT_NO_EXCUSE"
	still := func(e *env) { e.standStill(); e.Fatal("wrong") }
	if os.Getenv(inProcess) != "" {
		runCases(t, realTime, []testCase{
			{name: "again and again", run: still},
			{name: "in time", run: func(e *env) { e.Fatal("wrong") }},
			{name: "exclusion", tags: Exclusion, run: still},
		})
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoExcuse$", "-test.v")
	cmd.Env = append(os.Environ(), inProcess+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("it passes:\n%s", out)
	}
	for _, want := range []string{
		"--- SKIP: TestNoExcuse/again_and_again ", "--- SKIP: TestNoExcuse/again_and_again#01 ",
		"--- FAIL: TestNoExcuse/again_and_again#02 ",
		"--- FAIL: TestNoExcuse/in_time", "--- FAIL: TestNoExcuse/exclusion ",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
