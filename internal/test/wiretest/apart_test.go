package wiretest

import "testing"

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
