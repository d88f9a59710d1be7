package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// childOrder is an environment variable of a child. It has the store, its address, the lease, and
// the lock with its kind.
const childOrder = "DISTSYNC_FAULTS_CHILD"

// runChild runs a child process that acquires and releases locks by order. An order is a line with
// a verb and the name of a hold. An answer is a line with the name of the hold and a text.
//
//	lock    begins to wait; answers "in" when the lock is granted
//	err     answers at once with the error of the hold's context
//	unlock  releases it; answers with the result of Do
func runChild(order string) int {
	for prefix, run := range map[string]func(string) error{
		writerPrefix: runWriter, pairsPrefix: runPairs, guestsPrefix: runGuests,
		replicaPrefix: runReplica,
	} {
		if order, ok := strings.CutPrefix(order, prefix); ok {
			if err := run(order); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
	}
	var storeName, addr, lock string
	var lease time.Duration
	var kind backend.Kind
	if _, err := fmt.Sscan(order, &storeName, &addr, &lease, &lock, &kind); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	b, closeClient, err := storeNamed(storeName).connect(addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer closeClient()
	client := dlock.New(b, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	defer client.Close()
	c := &child{
		at: &party{client: client, name: lock, kind: kind}, holds: make(map[string]*childHold),
	}
	c.obey()
	return 0
}

type child struct {
	at    *party
	holds map[string]*childHold

	mu sync.Mutex // serializes writes to the standard output
}

type childHold struct {
	ctx   context.Context
	leave chan struct{}
}

func (c *child) say(hold, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Println(hold, what)
}

func (c *child) obey() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		verb, name, _ := strings.Cut(lines.Text(), " ")
		switch h := c.holds[name]; verb {
		case "lock":
			c.holds[name] = c.begin(name)
		case "err":
			c.say(name, fmt.Sprint(h.ctx.Err()))
		case "unlock":
			close(h.leave)
		}
	}
}

func (c *child) begin(name string) *childHold {
	h := &childHold{leave: make(chan struct{})}
	go func() {
		err := c.at.do(context.Background(), func(ctx context.Context) error {
			h.ctx = ctx // the parent asks for it only after the answer
			c.say(name, "in")
			<-h.leave
			return nil
		})
		c.say(name, fmt.Sprint(err))
	}()
	return h
}

// childLease is the lease of a child's locks.
const childLease = 3 * time.Second

// A process is a child process.
type process struct {
	lab     *lab
	kind    backend.Kind
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	exited  chan struct{}
	mu      sync.Mutex
	answers map[string]chan string // by hold
}

// process starts a child that uses the lock of the parties.
func (l *lab) process(addr string) *process {
	l.Helper()
	cmd := exec.Command(os.Args[0])
	kind := l.nextKind()
	cmd.Env = append(os.Environ(),
		childOrder+"="+fmt.Sprintf("%s %s %d %s %d", l.store.name, addr, childLease, l.lock, kind))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(l.T, err)
	stdout, err := cmd.StdoutPipe()
	must(l.T, err)
	must(l.T, cmd.Start())
	p := &process{
		lab: l, kind: kind, cmd: cmd, stdin: stdin, exited: make(chan struct{}),
		answers: make(map[string]chan string),
	}
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			hold, what, _ := strings.Cut(lines.Text(), " ")
			p.of(hold) <- what
		}
		cmd.Wait()
	}()
	l.Cleanup(p.kill)
	return p
}

// of returns the channel for the answers about a hold.
func (p *process) of(hold string) chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers[hold] == nil {
		p.answers[hold] = make(chan string, 100)
	}
	return p.answers[hold]
}

// order sends an order, and doesn't wait for an answer.
func (p *process) order(verb, hold string) {
	p.lab.Helper()
	_, err := fmt.Fprintln(p.stdin, verb, hold)
	must(p.lab.T, err)
}

// says waits for the next answer about a hold.
func (p *process) says(hold string) string {
	p.lab.Helper()
	return come(p.lab.T, "an answer of a child about "+hold, p.of(hold))
}

// lock waits until the child has the lock.
func (p *process) lock(hold string) {
	p.lab.Helper()
	p.order("lock", hold)
	if got := p.says(hold); got != "in" {
		p.lab.Fatalf("a child could not lock: %s", got)
	}
}

func (p *process) kill() {
	p.cmd.Process.Kill() // an error says that it has ended
	<-p.exited
}

// stop freezes the child, and waits until it is frozen.
func (p *process) stop() {
	p.lab.Helper()
	must(p.lab.T, p.cmd.Process.Signal(syscall.SIGSTOP))
	stat := fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)
	testservers.Until(p.lab.T, "the child is frozen", func() bool {
		data, err := os.ReadFile(stat)
		_, state, _ := strings.Cut(string(data), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})
}

func (p *process) cont() {
	p.lab.Helper()
	must(p.lab.T, p.cmd.Process.Signal(syscall.SIGCONT))
}
