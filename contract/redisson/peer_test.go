package redisson_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// classpaths has a function for each version that returns the class path of the Java program.
var classpaths = func() map[string]func() (string, error) {
	m := make(map[string]func() (string, error))
	for _, version := range loadVersions {
		m[version] = sync.OnceValues(func() (string, error) {
			return testservers.RedissonClasspath(".", version)
		})
	}
	return m
}()

// needJava skips a test if there is no Redisson to run. If the environment requires Redisson, the
// test fails.
func needJava(t *testing.T) { needVersions(t, versions) }

// needVersions is needJava for other versions.
func needVersions(t *testing.T, versions []string) {
	t.Helper()
	testservers.Program(t, "java")
	for _, version := range versions {
		_, err := classpaths[version]()
		switch {
		case err == nil:
		case os.Getenv("DISTSYNC_REQUIRE_SERVERS") == "1":
			t.Fatalf("%v\nDISTSYNC_REQUIRE_SERVERS=1 asks for it", err)
		default:
			t.Skip(err)
		}
	}
}

// redissonConfig is Redisson's configuration.
type redissonConfig struct {
	Single   *singleConfig  `json:"singleServerConfig,omitempty"`
	Cluster  *clusterConfig `json:"clusterServersConfig,omitempty"`
	Watchdog int64          `json:"lockWatchdogTimeout"` // in milliseconds
}

type singleConfig struct {
	Address string `json:"address"`
	Timeout int    `json:"timeout"`
}

type clusterConfig struct {
	Addresses []string `json:"nodeAddresses"`
	Sharded   string   `json:"shardedSubscriptionMode,omitempty"` // unknown to old versions
	Timeout   int      `json:"timeout"`
}

// redissonTimeout is how long Redisson waits for an answer, in milliseconds. Its default of 3 s is
// too short for a busy machine.
const redissonTimeout = 20_000

// A peer is a running Java program.
type peer struct {
	version string
	cmd     *exec.Cmd
	exited  chan struct{}
	threads atomic.Int64 // number of the last thread

	mu      sync.Mutex
	stdin   io.Writer
	answers map[string]chan string // by thread; nil when the program has ended
}

// startPeer starts a Java program, which runs until the end of the test. Redisson renews locks when
// a third of the watchdog's lease has passed.
func startPeer(t *testing.T, version string, config redissonConfig, watchdog time.Duration) *peer {
	t.Helper()
	classpath, err := classpaths[version]()
	if err != nil {
		t.Fatal(err)
	}
	config.Watchdog = watchdog.Milliseconds()
	yaml, err := json.Marshal(config) // JSON is also YAML
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{version: version, exited: make(chan struct{}), answers: make(map[string]chan string)}
	p.cmd = exec.Command("java",
		// these make it start quickly and stay small
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", classpath, "Peer", string(yaml))
	stderr := new(bytes.Buffer)
	p.cmd.Stderr = stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready := p.expect("ready")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.run(stdout)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("Redisson %s says:\n%s", version, stderr)
		}
	})
	receiveWithin(t, startPatience, "the Java program starts", ready)
	return p
}

// run passes the program's answers on until it ends.
func (p *peer) run(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		thread, answer, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		p.answers[thread] <- answer
		p.mu.Unlock()
	}
	p.mu.Lock()
	for _, answers := range p.answers {
		close(answers)
	}
	p.answers = nil
	p.mu.Unlock()
	p.cmd.Wait() // the result doesn't matter, since the program is killed
	close(p.exited)
}

// kill ends the program as the kernel ends a program that has used too much memory. It may be
// called again.
func (p *peer) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

func (p *peer) expect(thread string) <-chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	// a thread answers before it is asked again, so one place is enough
	answers := make(chan string, 1)
	if p.answers == nil {
		close(answers)
	} else {
		p.answers[thread] = answers
	}
	return answers
}

// A thread is a thread of the Java program. It does one thing at a time.
type thread struct {
	t       *testing.T
	peer    *peer
	name    string
	owner   string // its field in the hash of a lock that it holds
	kind    string // prefix of the methods that it calls, see Peer.java
	answers <-chan string
}

func (p *peer) thread(t *testing.T) *thread {
	t.Helper()
	th := &thread{t: t, peer: p, name: fmt.Sprint("thread", p.threads.Add(1))}
	th.answers = p.expect(th.name)
	th.owner = th.do("owner", "-")
	return th
}

// start makes the thread call a method of a lock, and returns the channel for the result. In Java,
// durations are numbers of milliseconds.
func (th *thread) start(method, lock string, arguments ...any) <-chan string {
	th.t.Helper()
	line := th.name + " " + th.kind + method + " " + lock
	for _, arg := range arguments {
		if d, ok := arg.(time.Duration); ok {
			arg = d.Milliseconds()
		}
		line += fmt.Sprint(" ", arg)
	}
	th.peer.mu.Lock()
	defer th.peer.mu.Unlock()
	if _, err := io.WriteString(th.peer.stdin, line+"\n"); err != nil {
		th.t.Fatalf("%s: %v", line, err)
	}
	return th.answers
}

// do is start, and waits for the result.
func (th *thread) do(method, lock string, arguments ...any) string {
	th.t.Helper()
	return receive(th.t, "Java answers to "+method, th.start(method, lock, arguments...))
}

// want is do, and checks the result.
func (th *thread) want(result, method, lock string, arguments ...any) {
	th.t.Helper()
	if got := th.do(method, lock, arguments...); got != result {
		th.t.Errorf("Java: %s %v: %s, want %s", method, arguments, got, result)
	}
}

// notHeld begins Redisson's error when a thread unlocks a lock that it doesn't hold.
const notHeld = "java.lang.IllegalMonitorStateException: "

// wantNotHeld makes the thread unlock a lock that it doesn't hold, and checks the error.
func (th *thread) wantNotHeld(unlock, lock string) {
	th.t.Helper()
	if got := th.do(unlock, lock); !strings.HasPrefix(got, notHeld) {
		th.t.Errorf("Java: %s what it doesn't hold: %s", unlock, got)
	}
}

// wantNearly checks that a method returns a number of milliseconds that is more than half of
// result, and no more than all of it.
func (th *thread) wantNearly(result time.Duration, method, lock string) {
	th.t.Helper()
	got := th.do(method, lock)
	n, err := strconv.ParseInt(got, 10, 64)
	if left := time.Duration(n) * time.Millisecond; err != nil || left > result ||
		left <= result/2 {
		th.t.Errorf("Java: %s: %s, want nearly %v", method, got, result)
	}
}

// receive waits for a value that must come soon.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	return receiveWithin(t, testservers.Patience, what, c)
}

func receiveWithin[T any](t *testing.T, patience time.Duration, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatalf("never happened: %s; the other side has ended", what)
		}
		return v
	case <-time.After(patience):
		t.Fatalf("never happened: %s", what)
		return v
	}
}
