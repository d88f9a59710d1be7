//go:build linux

package child

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each test runs its command in a program of its own. That program is this test's binary, and obeys
// orders line by line.

func TestMain(m *testing.M) {
	Guard()
	if os.Getenv("CHILD_TEST_PROGRAM") == "1" {
		program()
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or each program ends a second late
	os.Exit(m.Run())
}

// A program and its test talk over these.
const (
	ordersFile  = 3
	answersFile = 4
)

// program starts its command, reports on it, and obeys orders.
func program() {
	unix.CloseOnExec(ordersFile)
	unix.CloseOnExec(answersFile)
	orders, answers := os.NewFile(ordersFile, ""), os.NewFile(answersFile, "")
	until, _ := time.ParseDuration(os.Args[1])
	os.Unsetenv("CHILD_TEST_PROGRAM")
	c, err := Start(os.Args[2], os.Args[2:], os.Environ(), time.Now().Add(until))
	if err != nil {
		fmt.Fprintf(answers, "failed %v\n", err)
		os.Exit(0)
	}
	fmt.Fprintf(answers, "started %d %d\n", c.group, c.PID)
	go func() {
		<-c.Ended
		fmt.Fprintf(answers, "ended %d", c.Status.Exit())
		if c.Status.Spared > 0 {
			fmt.Fprintf(answers, " spared %d", c.Status.Spared)
		}
		fmt.Fprintln(answers)
		os.Exit(0)
	}()
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		order, arg, _ := strings.Cut(lines.Text(), " ")
		switch order {
		case "until":
			d, _ := time.ParseDuration(arg)
			c.Until(time.Now().Add(d))
		case "signal":
			n, _ := strconv.Atoi(arg)
			c.Signal(syscall.Signal(n))
		case "kill":
			c.Kill()
		}
		fmt.Fprintf(answers, "done %s\n", order)
	}
	os.Exit(1) // the test is gone
}

// patience passes only if something is broken.
const patience = 30 * time.Second

// forever is longer than a test.
const forever = "1h"

// A run is a program that runs a command.
type run struct {
	t       *testing.T
	cmd     *exec.Cmd
	orders  *os.File
	answers *bufio.Scanner
	dir     string // where processes leave their ids
	output  synced
	group   int
	command int
}

// synced is a buffer that one goroutine fills and another reads.
type synced struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// start lets a program start a command that may run so long. prepare may be nil.
func start(t *testing.T, prepare func(*exec.Cmd), until string, command ...string) *run {
	t.Helper()
	r := prepared(t, prepare, until, command...)
	answer := r.answer()
	if _, err := fmt.Sscanf(answer, "started %d %d", &r.group, &r.command); err != nil {
		t.Fatalf("the program says %q; output: %s", answer, r.output.String())
	}
	return r
}

// prepared is start for a command that need not start.
func prepared(t *testing.T, prepare func(*exec.Cmd), until string, command ...string) *run {
	t.Helper()
	ordersIn, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, answersIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, dir: t.TempDir(), orders: orders, answers: bufio.NewScanner(answers)}
	r.cmd = exec.Command(os.Args[0], append([]string{until}, command...)...)
	r.cmd.Env = append(os.Environ(), "CHILD_TEST_PROGRAM=1", "DIR="+r.dir)
	r.cmd.ExtraFiles = []*os.File{ordersIn, answersIn}
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	r.cmd.WaitDelay = time.Second
	if prepare != nil {
		prepare(r.cmd)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ordersIn.Close()
	answersIn.Close()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
		orders.Close()
		answers.Close()
	})
	return r
}

// answer returns the program's next line, or nothing if it is gone.
func (r *run) answer() string {
	if !r.answers.Scan() {
		return ""
	}
	return r.answers.Text()
}

// tell tells the program what to do.
func (r *run) tell(what string) {
	r.t.Helper()
	if _, err := fmt.Fprintln(r.orders, what); err != nil {
		r.t.Fatal(err)
	}
}

// order tells the program what to do, which doesn't end the command, and returns when it has.
func (r *run) order(what string) {
	r.t.Helper()
	r.tell(what)
	if answer := r.answer(); !strings.HasPrefix(answer, "done") {
		r.t.Fatalf("told to %s, the program says %q; output: %s", what, answer, r.output.String())
	}
}

// mustEnd waits for the command to end in that way, and for the program.
func (r *run) mustEnd(status int) {
	r.t.Helper()
	answer := r.answer()
	for strings.HasPrefix(answer, "done") {
		answer = r.answer()
	}
	err := r.cmd.Wait()
	if answer != fmt.Sprintf("ended %d", status) || err != nil {
		r.t.Fatalf("the program says %q, want status %d; it ended with %v; output: %s", answer,
			status, err, r.output.String())
	}
}

// pid returns the id of a process that left it in a file of that name.
func (r *run) pid(name string) (pid int) {
	r.t.Helper()
	r.eventually(name+" runs", func() bool {
		text, _ := os.ReadFile(filepath.Join(r.dir, name))
		n, err := fmt.Sscanf(string(text), "%d\n", &pid)
		return n == 1 && err == nil && strings.HasSuffix(string(text), "\n")
	})
	return pid
}

func (r *run) eventually(what string, condition func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not so: %s; output: %s", what, r.output.String())
		}
	}
}

// mustBeGone waits for processes to end, and mustLive fails if one has.
func (r *run) mustBeGone(pids ...int) {
	r.t.Helper()
	for _, pid := range pids {
		r.eventually(fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
	}
}

func (r *run) mustLive(pids ...int) {
	r.t.Helper()
	for _, pid := range pids {
		if gone(pid) {
			r.t.Fatalf("process %d is gone; output: %s", pid, r.output.String())
		}
	}
}
