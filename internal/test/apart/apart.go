// Package apart is for tests that mostly wait. It makes them run at the same time: several in one
// process, or in several processes.
package apart

import (
	"bytes"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/depth"
)

// SideBySide sets how many tests run at a time. There may be more tests than processors, since they
// mostly wait. With the race detector, it sets three quarters of the number. Call it in TestMain.
func SideBySide(tests int) {
	flag.Parse()
	at := max(int(float64(tests)*share), 1)
	if err := flag.Set("test.parallel", strconv.Itoa(at)); err != nil {
		panic(err) // can't happen, since the flag exists
	}
}

// inProcess is an environment variable of the processes that Run starts. It contains the number of
// the process and the number of all processes, as in "2/3".
const inProcess = "DISTSYNC_TEST_APART"

var (
	// turn matches the line that names the test whose logs follow.
	turn = regexp.MustCompile(`^=== (?:RUN|PAUSE|CONT|NAME) +(\S+)`)

	// result matches the line that reports the outcome of a test.
	result = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) `)
)

// eventful shortens the output of tests with -test.v. It removes the lines that name the running
// test, and all lines of tests that passed or were skipped. Long logs may be truncated, which could
// hide a failure at their end.
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

// Run runs the calling test in several processes, and returns true if it did. Each process runs the
// cases for which [Mine] returns true. Most cases of the contract suite wait for leases. In one
// process they run one after the other, since each checks for leaked goroutines. Several processes
// can wait at the same time. Run does nothing in a process that it started, or if the command line
// selects a part of the test.
func Run(t *testing.T, processes int) bool {
	t.Helper()
	if Within() || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return false
	}
	t.Parallel()
	if processes == 1 {
		runApart(t, "1/1")
		return true
	}
	for i := range processes {
		which := fmt.Sprintf("%d/%d", i+1, processes)
		t.Run(strings.Replace(which, "/", " of ", 1), func(t *testing.T) {
			t.Parallel()
			runApart(t, which)
		})
	}
	return true
}

// Within reports whether this is a process that [Run] started.
func Within() bool { return os.Getenv(inProcess) != "" }

// Mine reports whether this process runs the case with this name. Outside of the processes of
// [Run], it returns true.
func Mine(name string) bool { return isOf(os.Getenv(inProcess), name) }

// isOf reports whether a name belongs to a share such as "2/3".
func isOf(share, name string) bool {
	this, all, divided := strings.Cut(share, "/")
	if !divided {
		return true
	}
	k, err1 := strconv.Atoi(this)
	n, err2 := strconv.Atoi(all)
	if err1 != nil || err2 != nil || k < 1 || k > n {
		panic(inProcess + "=" + share)
	}
	sum := crc32.ChecksumIEEE([]byte(name))
	return int(sum%uint32(n)) == k-1
}

// runApart runs a share of the test in another process. The calling test gets the same result.
func runApart(t *testing.T, share string) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	if deadline, ok := t.Deadline(); ok { // a hang must be reported before this process ends
		left := max(time.Until(deadline)-10*time.Second, time.Second)
		cmd.Args = append(cmd.Args, "-test.timeout="+left.String())
	}
	cmd.Env = append(os.Environ(), inProcess+"="+share)
	// The process reads the depth. This call tells the go command that the test depends on it.
	depth.Now()
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("\n--- SKIP: ")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("\n--- PASS: ")):
		t.Errorf("%v\n%s", err, eventful(out))
	}
}
