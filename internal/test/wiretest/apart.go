package wiretest

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// SideBySide lets more tests run at a time than there are processors: they mostly wait. Call it in TestMain.
func SideBySide() {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err) // there is such a flag
	}
}

// inProcess is set in the environment of a process that Apart has started.
const inProcess = "DISTSYNC_TEST_APART"

var (
	// turn is the line of whose logs follow.
	turn = regexp.MustCompile(`^=== (?:RUN|PAUSE|CONT|NAME) +(\S+)`)

	// result is the line that says how a test has ended.
	result = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) `)
)

// eventful returns what tests with -test.v have printed without the lines that say who has begun, and without all that is of those that have
// passed or were skipped: logs are cut short, and what matters may come last.
func eventful(out []byte) []byte {
	well := make(map[string]bool)
	for _, test := range result.FindAllSubmatch(out, -1) {
		well[string(test[2])] = string(test[1]) != "FAIL"
	}
	var left []byte
	whose := ""
	for line := range bytes.Lines(out) {
		if begun := turn.FindSubmatch(line); begun != nil {
			whose = string(begun[1])
			continue
		}
		test := result.FindSubmatch(line)
		if test != nil {
			whose = "" // what follows is of no test
		}
		if !well[whose] && (test == nil || string(test[1]) == "FAIL") {
			left = append(left, line...)
		}
	}
	return left
}

// Apart runs the test that calls it in a process of its own, and says that it has: in two if it names a subtest, that and
// all others. Most cases of the contract suite wait for leases, one
// after the other, since each looks for goroutines that are left; processes can wait side by side. In such a process, and where
// only a part of the test is asked for, it does nothing.
func Apart(t *testing.T, subtest ...string) bool {
	t.Helper()
	if os.Getenv(inProcess) != "" || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return false
	}
	t.Parallel()
	whole := "^" + t.Name() + "$"
	if len(subtest) == 0 {
		runApart(t, "-test.run="+whole)
		return true
	}
	one := whole + "/^" + subtest[0] + "$"
	t.Run(subtest[0], func(t *testing.T) {
		t.Parallel()
		runApart(t, "-test.run="+one)
	})
	t.Run("others", func(t *testing.T) {
		t.Parallel()
		runApart(t, "-test.run="+whole, "-test.skip="+one)
	})
	return true
}

// runApart runs tests of this program in another process, and is what they are: passed, failed or skipped.
func runApart(t *testing.T, which ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(which, "-test.v")...)
	cmd.Env = append(os.Environ(), inProcess+"=1")
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("\n--- SKIP: ")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("\n--- PASS: ")):
		t.Errorf("%v\n%s", err, eventful(out))
	}
}
