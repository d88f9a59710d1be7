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

// uneventful are the lines that say that a test has begun, or has passed.
var uneventful = regexp.MustCompile(`(?m)^ *(=== (RUN|PAUSE|CONT|NAME) |--- (PASS|SKIP): ).*\n`)

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
		t.Errorf("%v\n%s", err, uneventful.ReplaceAll(out, nil)) // logs are cut short: nothing of it should be what went well
	}
}
