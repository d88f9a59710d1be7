// Package testservers starts real servers for tests. They use free loopback ports and temporary
// folders, and end with the test.
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

// Patience is the longest time that a test waits for an event that should come soon. Only a failing
// test waits that long.
const Patience = 90 * time.Second

// TB contains the methods of [testing.TB] that this package needs. A program that isn't a test can
// implement it. Fatal, Fatalf, Skip and Skipf must not return.
type TB interface {
	Helper()
	Cleanup(f func())
	TempDir() string
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Skipf(format string, args ...any)
}

// required reports whether a test fails, instead of being skipped, if a program is missing.
func required() bool { return os.Getenv("DISTSYNC_REQUIRE_SERVERS") == "1" }

// Program returns the path of a program. If it isn't installed, the test is skipped, or fails if
// DISTSYNC_REQUIRE_SERVERS=1 is set.
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

// A Spec describes how to run a server.
type Spec struct {
	Program string // looked up with [Program]

	// Args returns the command line of a server that listens on the given port of 127.0.0.1, and
	// keeps its files in dir, an empty folder.
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
	as   *syscall.Credential // user that runs the server and its children; nil means the test's

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	output *bytes.Buffer // read it only after exited is closed
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
	// Another process may take the port before the server does, so try several ports.
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

// FreePort returns a free port of 127.0.0.1 that it hasn't returned before in this process. The
// port is below the range for outgoing connections, so that a restarted server can use it again.
func FreePort(t TB) int {
	t.Helper()
	const first, last = 10000, 30000
	for range 100 {
		port := first + rand.IntN(last-first)
		if _, given := ports.LoadOrStore(port, nil); given {
			continue
		}
		if l, err := net.Listen("tcp",
			net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// ports is the set of ports that FreePort has returned.
var ports sync.Map

// start runs the program and waits until it answers.
func (s *Server) start() error {
	args := s.spec.Args(s.port, s.t.TempDir())
	var cmd *exec.Cmd
	var output *bytes.Buffer
	// Several test processes may build the program at once. The system doesn't run a file that one
	// of them still has open for writing, so retry.
	for deadline := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		cmd, output = exec.Command(s.path, args...), new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = output, output
		// If a child of the program outlives it and keeps the output open, don't wait for the
		// child.
		cmd.WaitDelay = time.Second
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
		cmd.Wait() // ignore the result, since tests kill servers
		close(exited)
	}()
	s.mu.Lock()
	s.cmd, s.exited, s.output = cmd, exited, output
	s.mu.Unlock()

	deadline := time.Now().Add(Patience)
	for {
		err := s.spec.Ready(s.Addr)
		select {
		case <-exited: // then another server answered
			return fmt.Errorf("%s ended at once:\n%s", s.spec.Program, output)
		default:
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %w", s.spec.Program, err)
		}
		time.Sleep(5 * time.Millisecond) // poll, since a server doesn't say when it is ready
	}
}

// Kill ends the server without a clean shutdown, and waits until it has exited. It may be called
// more than once.
func (s *Server) Kill() {
	s.mu.Lock()
	cmd, exited := s.cmd, s.exited
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	started := children(cmd.Process.Pid)
	cmd.Process.Kill() // also ends a stopped process; fails if it has already exited
	<-exited
	killAll(started)
}

// Stop freezes the server. Connections stay open, but get no answers.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont lets a frozen server continue.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("%v to %s: %v", sig, s.spec.Program, err)
	}
	for _, pid := range children(s.cmd.Process.Pid) {
		// an error means that the process has already exited
		_ = syscall.Kill(pid, sig.(syscall.Signal))
	}
}

// Restart kills the server and starts it again at the same address. It is then empty, unless its
// Spec keeps the data in a separate folder.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	// The system may briefly give the port to an outgoing connection of another program.
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

// Until waits until the condition holds, and fails the test if that takes longer than [Patience].
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

// joined joins arguments for messages.
func joined(args []string) string { return strings.Join(args, " ") }
