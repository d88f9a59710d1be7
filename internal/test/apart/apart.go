// Package apart runs tests at the same time, in one process or in several. It is for tests that
// spend most of their time waiting.
package apart

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/depth"
)

// SideBySide sets the number of tests that run in parallel. That number may exceed the number of
// processors, since the tests mostly wait. With the race detector, only three quarters of that
// number run in parallel. Call SideBySide in TestMain.
func SideBySide(tests int) {
	flag.Parse()
	at := max(int(float64(tests)*share), 1)
	if err := flag.Set("test.parallel", strconv.Itoa(at)); err != nil {
		panic(err) // can't happen, since the flag exists
	}
}

// inProcess is an environment variable of the processes that Run starts. Its value is a folder with
// an empty file for each case that one of them has taken.
const inProcess = "DISTSYNC_TEST_APART"

var (
	// turn matches the line that names the test whose logs follow.
	turn = regexp.MustCompile(`^=== (?:RUN|PAUSE|CONT|NAME) +(\S+)`)

	// result matches the line that reports the outcome of a test.
	result = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) `)
)

// eventful shortens the output of tests with -test.v. A long log may be truncated, and might then
// lack a failure at its end. eventful removes the lines that name the running test, and all lines
// of tests that passed or were skipped.
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
			whose = "" // the next lines belong to no test
		}
		if !well[whose] && (test == nil || string(test[1]) == "FAIL") {
			left = append(left, line...)
		}
	}
	return left
}

// Run runs the calling test in several processes, and reports whether it did. Each process runs the
// cases for which [Mine] returns true. So a process that has finished a case takes the next one
// that no other process has taken. Run does nothing in a process that it started, or if the command
// line selects a part of the test.
//
// Most cases of the contract suite wait for leases to expire. They can't run in parallel in one
// process, because each checks for leaked goroutines and would find those that the others use.
// Several processes can wait at the same time.
func Run(t *testing.T, processes int) bool {
	t.Helper()
	if Within() || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return false
	}
	t.Parallel()
	taken := t.TempDir()
	if processes == 1 {
		runApart(t, taken)
		return true
	}
	for i := range processes {
		t.Run(fmt.Sprintf("%d of %d", i+1, processes), func(t *testing.T) {
			t.Parallel()
			runApart(t, taken)
		})
	}
	return true
}

// Within reports whether this is a process that [Run] started.
func Within() bool { return os.Getenv(inProcess) != "" }

// mine contains the names of the cases that this process has taken.
var mine sync.Map

// Mine reports whether this process runs the case with this name. The first process that asks takes
// the case. Call Mine just before the case would run. It returns true in processes that [Run]
// didn't start.
func Mine(name string) bool {
	if _, again := mine.Load(name); again || !Within() {
		return true
	}
	file := filepath.Join(os.Getenv(inProcess), fmt.Sprintf("%x", sha256.Sum256([]byte(name))))
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false
	}
	if err != nil || f.Close() != nil {
		panic(fmt.Sprintf("can't take case %s: %v", name, err))
	}
	mine.Store(name, true)
	return true
}

// runApart runs the test in another process. The parameter taken is the folder in which processes
// record the cases that they have taken. If that process fails or skips the test, so does runApart.
func runApart(t *testing.T, taken string) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	// the other process must report a hang before this one times out
	if deadline, ok := t.Deadline(); ok {
		left := max(time.Until(deadline)-10*time.Second, time.Second)
		cmd.Args = append(cmd.Args, "-test.timeout="+left.String())
	}
	cmd.Env = append(os.Environ(), inProcess+"="+taken)
	// The other process reads the environment variable for the depth of the tests. Reading it here
	// as well tells the go command that the result of this test depends on that variable.
	depth.Now()
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("\n--- SKIP: ")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("\n--- PASS: ")):
		t.Errorf("%v\n%s", err, eventful(out))
	}
}
