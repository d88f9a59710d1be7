package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/goleak"
)

// childSetting is the environment variable that makes a process run a party. Its value is the
// party's setting, as JSON.
const childSetting = "DISTSYNC_SOAK_PARTY"

// runChild runs the party of a child process. It carries out the commands on standard input until
// the input ends.
func runChild(text string) error {
	var s setting
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	c, unmap, err := mapCells(s.Cells, len(s.Names))
	if err != nil {
		return err
	}
	defer unmap()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	tell := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		out.Encode(e) // fails only if the parent has exited
	}
	p := newParty(s, dial(s.Store, s.Addrs), c, tell)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if seed, ok := strings.CutPrefix(in.Text(), "start "); ok {
			n, err := strconv.ParseUint(seed, 10, 64)
			if err != nil {
				return err
			}
			p.start(n)
			continue
		}
		p.drain()
		go func() {
			p.users.Wait()
			tell(event{Drained: true})
		}()
	}
	p.close()
	if err := goroutinesLeft(); err != nil {
		tell(event{Leak: err.Error()})
	}
	return nil
}

// goroutinesLeft returns an error that lists the goroutines that have leaked.
func goroutinesLeft() (err error) {
	for range 30 { // Find itself retries for a while
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}

// A process is a party in a child process, which can be killed or frozen.
type process struct {
	setting
	number func() uint64 // returns the next child's number
	tell   func(event)
	leaked func(string)

	mu      sync.Mutex
	child   *child
	seed    uint64 // seed of the current episode; 0 between episodes
	drained bool
}

// A child is a child process, running or ended.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	ended  chan struct{} // closed when it has ended
	killed bool
}

// launch starts a child process. The caller must hold p.mu, unless p isn't shared yet.
func (p *process) launch() error {
	s := p.setting
	s.Number = p.number()
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := &child{cmd: exec.Command(self), ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childSetting+"="+string(text))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	p.child, p.drained = c, true
	go p.listen(c, out)
	if p.seed != 0 {
		p.drained = false
		fmt.Fprintln(c.in, "start", p.seed)
	}
	return nil
}

// listen passes on the events of a child until the child exits.
func (p *process) listen(c *child, out io.Reader) {
	defer close(c.ended)
	from := json.NewDecoder(out)
	for {
		var e event
		if from.Decode(&e) != nil {
			break
		}
		if e.Leak != "" {
			p.leaked(e.Leak)
		}
		if e.Drained {
			p.mu.Lock()
			p.drained = p.drained || p.child == c
			p.mu.Unlock()
		}
		p.tell(e)
	}
	err := c.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !c.killed {
		p.tell(event{Wrong: "a process ended: " + err.Error()})
	}
}

func (p *process) start(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seed, p.drained = seed, false
	fmt.Fprintln(p.child.in, "start", seed)
}

func (p *process) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seed = 0
	fmt.Fprintln(p.child.in, "drain")
}

// inside returns 0 if all users of the child have finished, and 1 otherwise.
func (p *process) inside() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drained {
		return 0
	}
	return 1
}

// explain makes the child print its goroutines and exit.
func (p *process) explain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child.killed = true
	p.child.cmd.Process.Signal(syscall.SIGQUIT)
}

// close makes the child exit, and waits for it.
func (p *process) close() {
	p.mu.Lock()
	c := p.child
	p.mu.Unlock()
	c.in.Close()
	<-c.ended
}

// kill kills the child and waits until it has exited. It can be called more than once.
func (p *process) kill() {
	p.mu.Lock()
	c := p.child
	c.killed = true
	p.mu.Unlock()
	c.cmd.Process.Kill()
	<-c.ended
}

// faults returns the faults of the child.
func (p *process) faults(fatal func(...any)) []fault {
	freeze := func(shortest, longest time.Duration) func(context.Context, *chance) bool {
		return func(ctx context.Context, dice *chance) bool {
			p.child.cmd.Process.Signal(syscall.SIGSTOP)
			wait(ctx, shortest+dice.upTo(longest-shortest))
			p.child.cmd.Process.Signal(syscall.SIGCONT)
			return true
		}
	}
	return []fault{
		{"client killed", func(context.Context, *chance) bool {
			p.kill()
			p.mu.Lock()
			defer p.mu.Unlock()
			if err := p.launch(); err != nil {
				fatal(err)
			}
			return true
		}},
		{"client frozen", freeze(0, p.Lease)},
		{"client frozen for more than a lease", freeze(p.Lease, 3*p.Lease)},
	}
}
