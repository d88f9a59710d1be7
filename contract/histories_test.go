package contract

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// historyFaults are ways in which a store can be wrong that the histories must tell.
var historyFaults = []string{
	"acquire takes what another holds",
	"acquire in two steps",
	"acquire is repeated",
	"two inherit",
	"re-entry doesn't count",
	"release forgets the owner",
	"release doesn't free",
	"release frees all holds",
	"release wakes too early",
	"release doesn't wake",
	"renew revives a free lock",
	"leases run out early",
	"leases run out late",
	"force gives back one hold",
	"look without an owner says free",
	"one permit too many",
	"permits in two steps",
	"a permit leaks",
	"permits never end",
	"newcomers come first",
	"giving up empties the line",
}

// TestHistoriesTellFaults runs the histories on broken stores, in another process since a test that
// is meant to fail can't be run in this one.
func TestHistoriesTellFaults(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal("the test's own program is not to be found:", err)
	}
	cmd := exec.Command(exe, "-test.run=^TestBrokenHistories$", "-test.count=1")
	cmd.Env = append(os.Environ(), "CONTRACT_BROKEN=1", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Fatalf("the histories on broken stores ended with %v; want failure\n%s", err, out)
	}
	if strings.Contains(string(out), "\npanic:") || strings.Contains(string(out), "DATA RACE") {
		t.Fatalf("the histories on broken stores did not end in order\n%.5000s", out)
	}
	for _, fault := range historyFaults {
		if !strings.Contains(string(out),
			"--- FAIL: TestBrokenHistories/"+strings.ReplaceAll(fault, " ", "_")+" (") {
			t.Errorf("a store in which %q passes", fault)
		}
	}
}

// TestBrokenHistories is what TestHistoriesTellFaults runs.
func TestBrokenHistories(t *testing.T) {
	if os.Getenv("CONTRACT_BROKEN") == "" {
		t.Skip("run by TestHistoriesTellFaults")
	}
	for _, fault := range historyFaults {
		t.Run(fault, func(t *testing.T) {
			h := Harness{NewStore: func(t *testing.T) Store {
				return newFakeStore(t, fault).store()
			}, Virtual: true}
			for range 5 { // a run is random, and may not show the fault
				for _, s := range scenarios {
					if !t.Failed() {
						t.Run(s.name, func(t *testing.T) { runHistory(t, h, s, nil) })
					}
				}
			}
		})
	}
}

// TestWholeHistories runs the same store without a fault, so that the faults are what is told.
func TestWholeHistories(t *testing.T) {
	runHistories(t, Harness{NewStore: func(t *testing.T) Store {
		return newFakeStore(t, "").store()
	}, Virtual: true})
}
