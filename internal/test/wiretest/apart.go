package wiretest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/deep"
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

// Apart runs the test that calls it in a process of its own, and says that it has. If it names
// parts, each is in one, and so is the rest. A part is what goes into -test.run behind the test,
// and what was in a part before isn't in a later one. Most cases of the contract suite wait for
// leases, one after the other, since each looks for goroutines that are left; processes can wait
// side by side. In such a process, and where only a part of the test is asked for, it does nothing.
func Apart(t *testing.T, parts ...string) bool {
	t.Helper()
	if os.Getenv(inProcess) != "" || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return false
	}
	t.Parallel()
	all := divided(t.Name(), parts)
	if len(all) == 1 {
		runApart(t, all[0]...)
		return true
	}
	for i, which := range all {
		t.Run(fmt.Sprintf("%d of %d", i+1, len(all)), func(t *testing.T) {
			t.Parallel()
			runApart(t, which...)
		})
	}
	return true
}

// divided returns the arguments that run each part of a test, and those that run the rest.
func divided(test string, parts []string) (all [][]string) {
	whole := "^" + test + "$"
	before := "^$" // no test
	for _, part := range parts {
		run := whole + "/" + part
		all = append(all, []string{"-test.run=" + run, "-test.skip=" + before})
		before += "|" + run
	}
	return append(all, []string{"-test.run=" + whole, "-test.skip=" + before})
}

// runApart runs tests of this program in another process, and is what they are: passed, failed or skipped.
func runApart(t *testing.T, which ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(which, "-test.v")...)
	cmd.Env = append(os.Environ(), inProcess+"=1")
	deep.Run() // which the process asks, and the go command is to know that this test depends on it
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("\n--- SKIP: ")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("\n--- PASS: ")):
		t.Errorf("%v\n%s", err, eventful(out))
	}
}
