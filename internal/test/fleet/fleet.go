// Package fleet runs the binary of a test as several processes, which act as the replicas of a
// service. The test sends orders to the replicas, and kills some of them while they work.
//
// Orders and answers are lines of text.
package fleet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// variable is the environment variable that makes a process a replica.
const variable = "DISTSYNC_FLEET"

// Main is the TestMain of a package with replicas. In a replica, it calls run with the argument of
// [Start]. run may read orders from standard input, and prints its answers. In the test itself,
// Main is like [goleak.VerifyTestMain], but waits longer for goroutines to end. A client whose
// server is gone may sleep for a second before it notices that it was closed.
func Main(m *testing.M, run func(what string) error) {
	what, isReplica := os.LookupEnv(variable)
	if !isReplica {
		goleak.VerifyTestMain(settling{m})
		return
	}
	if err := run(what); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// settling runs tests, and then waits for their goroutines to end.
type settling struct{ *testing.M }

func (s settling) Run() int {
	code := s.M.Run()
	for end := time.Now().Add(testservers.Patience); goleak.Find() != nil &&
		time.Now().Before(end); {
	}
	return code
}

// A Replica is a process that Start started from the test's binary.
type Replica struct {
	t      testservers.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{}

	mu   sync.Mutex
	said []string
}

// Start starts a replica, and passes the given string to its run function. The replica is killed at
// the end of the test.
func Start(t testservers.TB, what string) *Replica {
	t.Helper()
	r := &Replica{t: t, cmd: exec.Command(os.Args[0]), exited: make(chan struct{})}
	// By default, a program with the race detector sleeps for a second before it exits.
	r.cmd.Env = append(os.Environ(), variable+"="+what, "GORACE=atexit_sleep_ms=0")
	r.cmd.Stderr = os.Stderr
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.stdin = stdin
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go r.listen(stdout)
	t.Cleanup(r.Kill)
	return r
}

func (r *Replica) listen(stdout io.Reader) {
	defer close(r.exited)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		r.mu.Lock()
		r.said = append(r.said, lines.Text())
		r.mu.Unlock()
	}
	r.cmd.Wait() // ignore the result, since the test may have killed the process
}

// Order sends an order to the replica.
func (r *Replica) Order(words ...any) {
	r.t.Helper()
	if _, err := fmt.Fprintln(r.stdin, words...); err != nil {
		r.t.Fatal(err)
	}
}

// Said returns the replica's lines so far.
func (r *Replica) Said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.said)
}

// Await waits until the replica has printed the given line.
func (r *Replica) Await(what string) {
	r.t.Helper()
	testservers.Until(r.t, "a replica says "+what, func() bool {
		return slices.Contains(r.Said(), what)
	})
}

// AwaitAny waits until one of the replicas has printed the given line. It returns the index of the
// first such replica.
func AwaitAny(t testservers.TB, what string, replicas ...*Replica) int {
	t.Helper()
	who := -1
	testservers.Until(t, "one of the replicas says "+what, func() bool {
		who = slices.IndexFunc(replicas, func(r *Replica) bool {
			return slices.Contains(r.Said(), what)
		})
		return who >= 0
	})
	return who
}

// Count returns how many times the replicas have printed the given line.
func Count(what string, replicas ...*Replica) (n int) {
	for _, r := range replicas {
		for _, said := range r.Said() {
			if said == what {
				n++
			}
		}
	}
	return n
}

// Kill kills the replica with SIGKILL, and waits until it has exited. It may be called more than
// once.
func (r *Replica) Kill() {
	r.cmd.Process.Kill() // an error means that the process has already ended
	<-r.exited
}
