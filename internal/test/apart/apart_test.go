package apart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The output of a separate process is shortened. It has no lines about cases that passed.
func TestEventful(t *testing.T) {
	out := `=== RUN   TestSuite
=== RUN   TestSuite/passes
    suite.go:1: of a test that passed
=== RUN   TestSuite/is_skipped
    suite.go:2: of a test that was skipped
=== RUN   TestSuite/fails
    suite.go:3: first
=== NAME  TestSuite/passes
    suite.go:4: more of what passed
=== NAME  TestSuite/fails
    suite.go:5: second
=== RUN   TestSuite/passes_last
    suite.go:6: of a test that passed
--- FAIL: TestSuite (1.00s)
    --- PASS: TestSuite/passes (0.10s)
    --- SKIP: TestSuite/is_skipped (0.10s)
    --- FAIL: TestSuite/fails (0.10s)
    --- PASS: TestSuite/passes_last (0.10s)
FAIL
goleak: found
`
	want := `    suite.go:3: first
    suite.go:5: second
--- FAIL: TestSuite (1.00s)
    --- FAIL: TestSuite/fails (0.10s)
FAIL
goleak: found
`
	if got := string(eventful([]byte(out))); got != want {
		t.Errorf("left of the output is\n%s\nwant\n%s", got, want)
	}
}

// A test that panicked has no line with its result.
func TestEventfulPanic(t *testing.T) {
	out := "=== RUN   TestSuite\n=== RUN   TestSuite/panics\npanic: no\n\ngoroutine 1 [running]:\n"
	want := "panic: no\n\ngoroutine 1 [running]:\n"
	if got := string(eventful([]byte(out))); got != want {
		t.Errorf("left of the output is\n%s\nwant\n%s", got, want)
	}
}

// TestDivided runs its parts in several processes, each part once.
func TestDivided(t *testing.T) {
	log := os.Getenv("DISTSYNC_TEST_DIVIDED")
	if log == "" {
		log = filepath.Join(t.TempDir(), "log")
		t.Setenv("DISTSYNC_TEST_DIVIDED", log)
		runAll(t)
		ran, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Fields(string(ran))
		slices.Sort(lines)
		if want := strings.Fields("0 1 2 3 4 5 6 7 8 9"); !slices.Equal(lines, want) {
			t.Errorf("the processes have run %q, want %q", lines, want)
		}
		return
	}
	for i := range 10 {
		name := fmt.Sprint(i)
		t.Run(name, func(t *testing.T) {
			if !Mine(t.Name()) {
				t.SkipNow()
			}
			f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = fmt.Fprintln(f, name)
			}
			if err != nil || f.Close() != nil {
				t.Fatal(err)
			}
		})
	}
}

// runAll runs this test in three processes, and waits for them.
func runAll(t *testing.T) {
	t.Helper()
	taken := t.TempDir()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { runApart(t, taken) })
	}
	all.Wait()
}
