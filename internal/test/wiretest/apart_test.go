package wiretest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What a process of its own prints is cut short in logs: nothing of it may be of what went well.
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

// A test that panicked has no line that says how it ended.
func TestEventfulPanic(t *testing.T) {
	out := "=== RUN   TestSuite\n=== RUN   TestSuite/panics\npanic: no\n\ngoroutine 1 [running]:\n"
	want := "panic: no\n\ngoroutine 1 [running]:\n"
	if got := string(eventful([]byte(out))); got != want {
		t.Errorf("left of the output is\n%s\nwant\n%s", got, want)
	}
}

// TestSuite is what TestDivided divides.
func TestSuite(t *testing.T) {
	for _, name := range []string{"steps", "locker", "locker without hand-over", "model"} {
		t.Run(name, func(t *testing.T) {
			if name == "locker" {
				for _, name := range []string{"a lock", "another", "the rest"} {
					t.Run(name, func(*testing.T) {})
				}
			}
		})
	}
}

// Each test is in one part, and in no other.
func TestDivided(t *testing.T) {
	parts := []string{"^locker$/^a", "^locker$"}
	want := [][]string{
		{"locker/a_lock", "locker/another"},
		{"locker/the_rest"},
		{"steps", "locker_without_hand-over", "model"},
	}
	for i, which := range divided("TestSuite", parts) {
		out, err := exec.Command(os.Args[0], append(which, "-test.v")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var ran []string
		for _, test := range result.FindAllSubmatch(out, -1) {
			if _, name, sub := strings.Cut(string(test[2]), "/"); sub && name != "locker" {
				ran = append(ran, name)
			}
		}
		if !slices.Equal(ran, want[i]) {
			t.Errorf("%q runs %q, want %q", which, ran, want[i])
		}
	}
	if all := divided("TestSuite", nil); len(all) != 1 {
		t.Errorf("without parts there are %q", all)
	}
}
