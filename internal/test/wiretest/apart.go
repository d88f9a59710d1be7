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

// Apart runs the test that calls it in a process of its own, and says that it has. Most cases of the contract suite wait for leases, one
// after the other, since each looks for goroutines that are left; processes can wait side by side. In that process, and where
// only a part of the test is asked for, it does nothing.
func Apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inProcess) != "" || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return false
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inProcess+"=1")
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name()+" ")):
		t.Errorf("%v\n%s", err, uneventful.ReplaceAll(out, nil)) // logs are cut short: nothing of it should be what went well
	}
	return true
}
