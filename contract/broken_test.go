package contract

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/apart"
)

func TestMain(m *testing.M) {
	apart.SideBySide(6)
	goleak.VerifyTestMain(m)
}

// storeFaults are ways in which a store can be wrong. Each must be caught by the case that is
// named, so that no case is there in vain; and, where model is set, by the random sequences too.
var storeFaults = slices.Concat(plainFaults, kindFaults, turnFaults, inspectFaults, keepFaults,
	latchFaults)

// plainFaults are those that are told by the cases for plain locks.
var plainFaults = []storeFault{
	{"acquire takes what another holds", "acquire/held", true},
	{"acquire prolongs what another holds", "acquire/held", true},
	{"acquire forgets the lease", "acquire/free", true},
	{"re-entry doesn't count", "acquire/again", true},
	{"re-entry has no Count", "acquire/re-entry", true},
	{"re-entry keeps the lease", "acquire/lease", true},
	{"re-entry only prolongs", "acquire/lease", true},
	{"re-entry only for its own session", "names/sessions", false},
	{"acquire in two steps", "concurrency/one wins", false},
	{"re-entry in two steps", "concurrency/counts", false},
	{"counts wrap at 128", "acquire/often", false},
	{"the next hold has the lease of the last", "kinds/whole lease", false},
	{"acquire in two steps", "concurrency/exclusion", false},
	{"next owner inherits a hold", "acquire/next", true},
	{"release forgets the owner", "release/another's", true},
	{"release by another prolongs", "release/another's", true},
	{"release doesn't free", "release/count", true},
	{"release frees all holds", "release/count", true},
	{"release keeps the lease", "release/lease", true},
	{"release of a free lock leaves one", "release/free", true},
	{"renew revives a free lock", "renew/free", true},
	{"renew forgets the owner", "renew/another's", true},
	{"renew only prolongs", "renew/held", true},
	{"renew counts", "renew/held", true},
	{"force gives back one hold", "force/held", true},
	{"force always says released", "force/free", true},
	{"look prolongs", "look/unchanged", true},
	{"look tells anybody's count", "look/unchanged", true},
	{"look without an owner says free", "look/nobody", false},
	{"leases run out late", "lease/runs out", true},
	{"leases run out early", "lease/kept", true},
	{"leases of re-entries don't last", "lease/prolonged by re-entry", true},
	{"leases of renewals don't last", "lease/prolonged by Renew", true},
	{"leases of releases don't last", "lease/prolonged by Release", true},
	{"leases run out when looked at", "lease/runs out for the next", true},
	{"counts outlive the lease", "lease/same owner afterwards", true},
	{"shorter leases are only noted", "lease/cut short", true},
	{"one lease for all locks", "lease/of its own", true},
	{"limits vary", "limits", false},
	{"names fold case", "names/of locks", false},
	{"names are trimmed", "names/of locks", false},
	{"names end at 256", "names/of locks", false},
	{"owners fold case", "names/of owners", false},
	{"owners end at NUL", "names/of owners", false},
	{"names run into owners", "names/and owners", false},
	{"ended context: done, says Retry", "context/ended", false},
	{"ended context: says Refused", "context/ended", false},
	{"ended context: not done, says nothing", "context/ended", false},
	{"context ends meanwhile: done, says Retry", "context/ends meanwhile", false},
	{"broken connection: says Retry", "fragile/acquire", false},
	{"broken connection: says Retry", "fragile/renew", false},
	{"broken connection: says Retry", "fragile/batch", false},
	{"broken connection: says Refused", "fragile/acquire", false},
	{"broken connection: says nothing", "fragile/force", false},
	{"broken connection: repeats", "fragile/acquire", false},
	{"broken connection: repeats", "fragile/re-entry", false},
	{"broken connection: repeats", "fragile/release of one of several", false},
	{"broken connection: repeats", "fragile/last release", false},
	{"late request: says Retry", "fragile/acquire", false},
	{"nothing is struck", "fragile/acquire", false},
	{"release doesn't wake", "notifier/release", false},
	{"release wakes other sessions only", "notifier/release", false},
	{"release of a re-entered lock doesn't wake", "notifier/last hold", false},
	{"force doesn't wake", "notifier/force", false},
	{"release wakes too early", "notifier/free when woken", false},
	{"subscription stands late", "notifier/at once", false},
	{"closed subscription goes on", "notifier/closed", false},
	{"waiting counts the session itself", "notifier/waiting", false},
	{"waiting counts one of the session's own", "notifier/waiting", false},
	{"waiting overlooks one", "notifier/waiting", false},
	{"waiting looks at all names", "notifier/waiting", false},
	{"waiting is said unasked", "notifier/waiting", false},
	{"waiting never ends", "notifier/waiting", false},
	{"subscription ends with its context", "notifier/context", false},
	{"closing ends the next subscription", "notifier/again", false},
	{"closing ends the next subscription", "notifier/closed and again", false},
	{"one subscription per session", "notifier/many names", false},
	{"subscriptions fold case", "notifier/names", false},
	{"ended context spoils the session", "notifier/context over", false},
	{"break is final", "notifier/broken", false},
	{"break is restored silently", "notifier/broken", false},
	{"break is restored silently", "notifier/broken and released", false},
	{"batch skips", "batch/mixed", false},
	{"batch answers twice", "batch/mixed", false},
	{"batch has one lease", "batch/mixed", false},
	{"batch ends at 999", "batch/many", false},
	{"batch answers by name", "batch/names", false},
	{"batch has no duplicates", "batch/duplicates", false},
	{"batch fails beside another", "batch/concurrent", false},
	{"batch doesn't answer when over", "batch/context over", false},
	{"batch doesn't wait for answers", "batch/returns last", false},
	{"acquires have one owner", "together/acquire", false},
	{"acquires have one lease", "together/acquire", false},
	{"acquires end at a refusal", "together/acquire", false},
	{"acquires skip", "together/many", false},
	{"acquires answer before they are over", "together/context over", false},
	{"releases have one owner", "together/release", false},
	{"releases answer twice", "together/release", false},
	{"releases wake for the first only", "together/notifier", false},
	{"close releases", "close/release", false},
	{"close ends Release", "close/release", false},
	{"close keeps subscriptions", "close/notifier", false},
	{"close leaves a goroutine", "close/goroutines", false},
	{"close fails while busy", "close/concurrent", false},
	{"foreign: acquire overwrites", "conflict", false},
	{"foreign: force deletes", "conflict", false},
	{"foreign: one kind counts as a lock", "conflict", false},
	{"foreign: look says free", "conflict", false},
	{"foreign: kind is Unknown", "conflict", false},
	{"foreign: batch fails as a whole", "conflict", false},
	{"locks share their steps", "concurrency/many locks", false},
	{"wipe leaves locks", "wipe", false},
	{"renew compares versions only", "wipe/counts", false},
	{"release compares versions only", "wipe/counts", false},
	{"re-entry compares versions only", "wipe/counts", false},
	{"wipe ends subscriptions", "wipe/notifier", false},
}

type storeFault struct {
	fault    string
	caughtBy string // the name of a case
	model    bool
}

// lockerFaults are faults that a case for Lockers must catch, too.
var lockerFaults = []storeFault{
	{"broken connection: says Retry", "a connection that breaks", false},
	{"broken connection: repeats", "a connection that breaks", false},
	{"broken connection: says Retry", "a connection that breaks in a line", false},
}

// TestFaultsAreCaught runs the suite on broken stores, in another process since a test that is
// meant to fail can't be run in this one.
func TestFaultsAreCaught(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal("the test's own program is not to be found:", err)
	}
	cmd := exec.Command(exe, "-test.run=^TestBroken(Parts)?$", "-test.count=1",
		// Always the same sequences, and so many that chance has no say.
		"-rapid.seed=1", "-rapid.checks=4000", "-rapid.nofailfile", "-rapid.shrinktime=100ms")
	cmd.Env = append(os.Environ(), "CONTRACT_BROKEN=1")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Fatalf("the suite on broken stores ended with %v; want failure\n%s", err, out)
	}
	if strings.Contains(string(out), "\npanic:") || strings.Contains(string(out), "DATA RACE") {
		t.Fatalf("the suite on broken stores did not end in order\n%.5000s", out)
	}
	var failed []string
	for line := range strings.Lines(string(out)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestBroken/")
		if !ok {
			name, ok = strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestBrokenParts/")
		}
		if ok {
			name, _, _ = strings.Cut(name, " (")
			failed = append(failed, name)
		}
	}
	for _, f := range storeFaults {
		name := strings.ReplaceAll(f.fault, " ", "_")
		if !slices.Contains(failed, name+"/steps/"+strings.ReplaceAll(f.caughtBy, " ", "_")) {
			t.Errorf("a store in which %q passes the case %q", f.fault, f.caughtBy)
		}
		if f.model && !slices.Contains(failed, name+"/model") {
			t.Errorf("a store in which %q passes the random sequences", f.fault)
		}
	}
	for _, f := range lockerFaults {
		if name := strings.ReplaceAll(f.fault+"/locker/"+f.caughtBy, " ",
			"_"); !slices.Contains(failed, name) {
			t.Errorf("a store in which %q passes the case %q for Lockers", f.fault, f.caughtBy)
		}
	}
	for _, f := range partFaults {
		if name := strings.ReplaceAll(f.fault+"/"+f.caughtBy, " ", "_"); !slices.Contains(failed,
			name) {
			t.Errorf("a store in which %q passes the case %q", f.fault, f.caughtBy)
		}
	}
	for _, c := range partCases {
		if !slices.ContainsFunc(partFaults, func(f storeFault) bool {
			return f.caughtBy == c.name
		}) {
			t.Errorf("no fault shows that the case %q can fail", c.name)
		}
	}
	for _, c := range slices.Concat(stepCases, kindCases) {
		if !slices.ContainsFunc(storeFaults, func(f storeFault) bool {
			return f.caughtBy == c.name
		}) {
			t.Errorf("no fault shows that the case %q can fail", c.name)
		}
	}
}

// TestBroken is what TestFaultsAreCaught runs.
func TestBroken(t *testing.T) {
	if os.Getenv("CONTRACT_BROKEN") == "" {
		t.Skip("run by TestFaultsAreCaught")
	}
	seen := make(map[string]bool)
	for _, f := range storeFaults {
		if seen[f.fault] {
			continue
		}
		seen[f.fault] = true
		t.Run(f.fault, func(t *testing.T) {
			h := Harness{NewStore: func(t *testing.T) Store {
				return newFakeStore(t, f.fault).store()
			}, Virtual: true}
			t.Run("steps", func(t *testing.T) { runCaught(t, h, f.fault) })
			if f.model {
				t.Run("model", func(t *testing.T) { runModel(t, h) })
			}
			if slices.ContainsFunc(lockerFaults, func(other storeFault) bool {
				return other.fault == f.fault
			}) {
				t.Run("locker", func(t *testing.T) {
					runCases(t, h, slices.Concat(fragileLockerCases, fragileLineCases))
				})
			}
		})
	}
}

// TestBrokenParts is TestBroken for stores of several parts.
func TestBrokenParts(t *testing.T) {
	if os.Getenv("CONTRACT_BROKEN") == "" {
		t.Skip("run by TestFaultsAreCaught")
	}
	for _, f := range partFaults {
		t.Run(f.fault, func(t *testing.T) { runParts(t, f.fault) })
	}
}

// runCaught runs those of the step cases that are to catch a fault.
func runCaught(t *testing.T, h Harness, fault string) {
	byKind := make(map[backend.Kind][]testCase)
	for _, f := range storeFaults {
		if f.fault != fault {
			continue
		}
		kind, name := backend.Exclusive, f.caughtBy
		for _, k := range []backend.Kind{backend.Fenced, backend.Read, backend.Write, backend.Fair,
			backend.Permits} {
			if rest, ok := strings.CutPrefix(f.caughtBy, "as "+k.String()+"/"); ok {
				kind, name = k, rest
			}
		}
		byKind[kind] = append(byKind[kind], pick(slices.Concat(stepCases, kindCases), name)...)
	}
	for k, cases := range byKind {
		if k == backend.Exclusive {
			runCases(t, h, cases)
		} else {
			runKind(t, h, k, cases)
		}
	}
}

// pick returns the cases of these names.
func pick(cases []testCase, names ...string) []testCase {
	var picked []testCase
	for _, name := range names {
		i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })
		if i < 0 {
			panic("contract: there is no case " + name)
		}
		picked = append(picked, cases[i])
	}
	return picked
}

// TestWhole runs the same store without a fault, so that the faults are what is caught.
func TestWhole(t *testing.T) {
	h := Harness{NewStore: func(t *testing.T) Store {
		return newFakeStore(t, "").store()
	}, Virtual: true}
	t.Run("steps", func(t *testing.T) { runSteps(t, h) })
	t.Run("model", func(t *testing.T) { runModel(t, h) })
	t.Run("locker", func(t *testing.T) {
		runCases(t, h, fragileLockerCases)
		runKind(t, h, backend.Fenced, fragileLockerCases)
		runKind(t, h, backend.Write, fragileLockerCases)
		runKind(t, h, backend.Fair, fragileLockerCases)
		runCases(t, h, fragileLineCases)
	})
	t.Run("parts", func(t *testing.T) { runParts(t, "") })
}
