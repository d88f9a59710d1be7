// Package testservers starts real servers for tests: on free loopback ports, in temporary folders,
// ended with the test.
package testservers

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Patience is how long a test waits for what should happen soon. It is only ever waited out when
// something is broken.
const Patience = 30 * time.Second

// TB is what starting a server needs of a test: a part of [testing.TB], so that a program that is
// no test can bring its own. Fatal, Fatalf, Skip and Skipf must not return.
type TB interface {
	Helper()
	Cleanup(f func())
	TempDir() string
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Skipf(format string, args ...any)
}

// required says whether a missing program fails a test. Otherwise the test is skipped.
func required() bool { return os.Getenv("DISTSYNC_REQUIRE_SERVERS") == "1" }

// Program returns the path of a program. If it is not installed, the test is skipped, or fails
// where DISTSYNC_REQUIRE_SERVERS=1 is set.
func Program(t TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if required() {
		t.Fatalf("%s is not installed, and DISTSYNC_REQUIRE_SERVERS=1 asks for it", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// A Spec says how to run a server.
type Spec struct {
	Program string // looked up with [Program]

	// Args returns the command line of a server that listens on the port on 127.0.0.1 and keeps its
	// files in the folder, which is empty.
	Args func(port int, dir string) []string

	// Ready returns nil once the server at the address answers.
	Ready func(addr string) error
}

// A Server is a running server.
type Server struct {
	Addr string // host:port

	t    TB
	spec Spec
	path string
	port int
	as   *syscall.Credential // who runs it, and all that it starts; nil: whoever runs the test

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	output *bytes.Buffer // to be read after exited is closed
}

// Start runs a server until the end of the test.
func Start(t TB, spec Spec) *Server {
	t.Helper()
	s := &Server{t: t, spec: spec, path: Program(t, spec.Program)}
	t.Cleanup(s.Kill)
	return s.startAnywhere()
}

// startAnywhere starts a server on some port.
func (s *Server) startAnywhere() *Server {
	s.t.Helper()
	// Between the choice of a port and its use another process may take it.
	var err error
	for range 5 {
		s.port = FreePort(s.t)
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
		if err = s.start(); err == nil {
			return s
		}
		s.Kill()
	}
	s.t.Fatal(err)
	return nil
}

// FreePort returns a port of 127.0.0.1 that nobody listens on and that this process has not asked
// for before. It is below those that systems give to outgoing connections, so that a server can
// come back to it.
func FreePort(t TB) int {
	t.Helper()
	const first, last = 10000, 30000
	for range 100 {
		port := first + rand.IntN(last-first)
		if _, given := ports.LoadOrStore(port, nil); given {
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// ports are those that FreePort has returned.
var ports sync.Map

// start runs the program and waits until it answers.
func (s *Server) start() error {
	args := s.spec.Args(s.port, s.t.TempDir())
	var cmd *exec.Cmd
	var output *bytes.Buffer
	// Several processes that ask the go command for a program which was never built each write it:
	// until all have, it can't be run.
	for deadline := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		cmd, output = exec.Command(s.path, args...), new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = output, output
		cmd.WaitDelay = time.Second // if the program leaves a child that holds on to its output
		if s.as != nil {
			cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: s.as}, "/"
		}
		err := cmd.Start()
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(deadline) {
			return err
		}
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait() // how it ended does not matter: it is killed
		close(exited)
	}()
	s.mu.Lock()
	s.cmd, s.exited, s.output = cmd, exited, output
	s.mu.Unlock()

	deadline := time.Now().Add(Patience)
	for {
		err := s.spec.Ready(s.Addr)
		select {
		case <-exited: // so whoever answered was another
			return fmt.Errorf("%s ended at once:\n%s", s.spec.Program, output)
		default:
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %w", s.spec.Program, err)
		}
		time.Sleep(5 * time.Millisecond) // between two looks at another process: nothing to wait on
	}
}

// Kill ends the server as a power cut does, and returns when it is gone. It may be called again.
func (s *Server) Kill() {
	s.mu.Lock()
	cmd, exited := s.cmd, s.exited
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	started := children(cmd.Process.Pid)
	cmd.Process.Kill() // ends a stopped process too; an error says that it has ended already
	<-exited
	killAll(started)
}

// Stop freezes the server: connections stay open, and nothing is answered.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont ends what Stop began.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("%v to %s: %v", sig, s.spec.Program, err)
	}
	for _, pid := range children(s.cmd.Process.Pid) {
		_ = syscall.Kill(pid, sig.(syscall.Signal)) // or it has ended by itself
	}
}

// Restart kills the server and starts an empty one at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	// The system may give its port to a connection of somebody else, for a moment.
	for deadline := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		err := s.start()
		if err == nil {
			return
		}
		s.Kill()
		if time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

// Until waits until the condition holds, and fails the test if it does not for too long.
func Until(t TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// joined is for messages.
func joined(args []string) string { return strings.Join(args, " ") }
