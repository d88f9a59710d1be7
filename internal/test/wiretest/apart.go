package wiretest

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

// SideBySide lets so many tests run at a time, where there may be fewer processors: they mostly wait.
// Call it in TestMain.
func SideBySide(tests int) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
		panic(err) // there is such a flag
	}
}

// inProcess is set in the environment of a process that Apart has started: which one it is, and of
// how many, as in "2/3".
const inProcess = "DISTSYNC_TEST_APART"

var (
	// turn is the line of whose logs follow.
	turn = regexp.MustCompile(`^=== (?:RUN|PAUSE|CONT|NAME) +(\S+)`)

	// result is the line that says how a test has ended.
	result = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) `)
)

// eventful returns what tests with -test.v have printed without the lines that say which has begun,
// and without all that is of those that have passed or were skipped: logs are cut short, and what
// matters may come last.
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

// Apart runs the test that calls it in so many processes of its own, and says that it has. Each runs
// what [Mine] says is its share. Most cases of the contract suite wait for leases, one after the
// other, since each looks for goroutines that are left; processes can wait side by side. In such a
// process, and where only a part of the test is asked for, it does nothing.
func Apart(t *testing.T, processes int) bool {
	t.Helper()
	if os.Getenv(inProcess) != "" || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
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

// Mine says whether what has this name is for this process, of those that [Apart] has started.
func Mine(name string) bool { return isOf(os.Getenv(inProcess), name) }

// isOf says whether a name is in a share, as in "2/3".
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

// runApart runs the test in another process, and is what that is: passed, failed or skipped.
func runApart(t *testing.T, share string) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	if deadline, ok := t.Deadline(); ok { // it says where it hangs, before this process is ended
		left := max(time.Until(deadline)-10*time.Second, time.Second)
		cmd.Args = append(cmd.Args, "-test.timeout="+left.String())
	}
	cmd.Env = append(os.Environ(), inProcess+"="+share)
	depth.Now() // which the process asks, and the go command is to know that this test depends on it
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("\n--- SKIP: ")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("\n--- PASS: ")):
		t.Errorf("%v\n%s", err, eventful(out))
	}
}
