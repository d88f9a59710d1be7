package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"
)

// Everything is measured in processes of their own, so that nothing is left from what was measured
// before. Such a process gets a trial in its environment. It says "ready" on its output when all is
// set up, begins at a line on its input, and then writes its report. It ends at once if its input
// does.

const trialVariable = "DISTSYNC_BENCH_TRIAL"

// A trial is what one process is to do.
type trial struct {
	Job       string
	Contender string // its key
	Addr      string // of the server to use
	Server    string // its address, where Addr is that of a proxy
	Name      string // of the lock, or what the names begin with
	Lease     time.Duration
	Duration  time.Duration
	Profile   string // what the names of the files for profiles begin with; "": none

	Goroutines int
	Naming     naming
	Endless    bool   // the contexts never end
	Unpinned   bool   // on any CPU: those who race need more than one
	Shared     string // the file that the critical section of several processes is in

	Count int // of locks, or of those who wait
	Pairs int // of holder and waiter, who talk over pipes
	Holds [2]time.Duration

	Kind   kind
	Writes int           // of a hundred, where the kind has both sides
	Inside time.Duration // what each turn in the critical section takes; 0: nothing
}

// measured is what a process has measured.
type measured struct {
	Err     string
	Counts  []int64 // acquisitions, by goroutine
	Entries int64   // into the critical section, whenever
	Reads   int64   // how many of these shared it
	Clashes int64   // somebody else was inside
	Waits   histogram
	Writes  histogram // the waits of those who didn't share it
	Pairs   histogram // lock and unlock
	Longest time.Duration
	Inside  []time.Time // when each of the locks was had
	Values  values
}

// values are figures by the name of their metric.
type values map[string]float64

// patience is how long a process may take for what doesn't depend on the trial.
const patience = 2 * time.Minute

// A process carries out a trial.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	out     *bufio.Reader
	errs    bytes.Buffer
	watch   *time.Timer
	expired atomic.Bool
}

// launch starts a process, on the CPU for clients if it is to be pinned, with files that it finds from
// descriptor 3 on.
func (l *lab) launch(t trial, files ...*os.File) (*process, error) {
	if t.Profile != "" {
		l.launched++ // some trials have several processes
		t.Profile += fmt.Sprintf("-%d", l.launched)
	}
	spec, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd, err := l.command(t)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	p.cmd.Env = append(os.Environ(), trialVariable+"="+string(spec))
	p.cmd.Stderr = &p.errs
	p.cmd.ExtraFiles = files
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	cpu := l.clientCPU
	if t.Unpinned {
		cpu = noCPU
	}
	if err := pinned(cpu, p.cmd.Start); err != nil {
		return nil, err
	}
	p.watch = time.AfterFunc(t.Duration+patience, func() {
		p.expired.Store(true)
		p.cmd.Process.Kill()
	})
	return p, nil
}

// command returns the command that carries out a trial.
func (l *lab) command(t trial) (*exec.Cmd, error) {
	if contenderBy(t.Contender).isJava() {
		return l.javaCommand(t)
	}
	self, err := os.Executable()
	return exec.Command(self), err
}

// ready waits until the process has set up all.
func (p *process) ready() error {
	line, err := p.out.ReadString('\n')
	if err == nil && line == "ready\n" {
		return nil
	}
	p.end()
	if text, ok := strings.CutPrefix(line, "failed: "); ok {
		err = errors.New(strings.TrimSpace(text))
	}
	return p.failure(err)
}

// begin lets the process begin.
func (p *process) begin() error {
	_, err := io.WriteString(p.stdin, "go\n")
	return err
}

// finish waits for the report, and for the end.
func (p *process) finish() (measured, error) {
	var rep measured
	err := json.NewDecoder(p.out).Decode(&rep)
	p.end()
	if err == nil && rep.Err != "" {
		err = errors.New(rep.Err)
	}
	if err != nil {
		err = p.failure(err)
	}
	return rep, err
}

// end ends the process if it hasn't ended.
func (p *process) end() {
	p.stdin.Close()
	io.Copy(io.Discard, p.out)
	p.cmd.Wait() // how it ended was in what it wrote
	p.watch.Stop()
}

func (p *process) failure(err error) error {
	if p.expired.Load() {
		err = fmt.Errorf("it took too long: %w", err)
	}
	if text := strings.TrimSpace(p.errs.String()); text != "" {
		err = fmt.Errorf("%w\n%.2000s", err, text)
	}
	return err
}

// perform carries out trials, each in a process, that begin together once all are ready. It calls
// around with what is done between that and their end.
func (l *lab) perform(trials []trial, around func(func() error) error) ([]measured, error) {
	processes := make([]*process, len(trials))
	reports := make([]measured, len(trials))
	for i, t := range trials {
		p, err := l.launch(t)
		if err != nil {
			return nil, err
		}
		defer p.end()
		processes[i] = p
	}
	for _, p := range processes {
		if err := p.ready(); err != nil {
			return nil, err
		}
	}
	err := around(func() error {
		for _, p := range processes {
			if err := p.begin(); err != nil {
				return err
			}
		}
		for i, p := range processes {
			var err error
			if reports[i], err = p.finish(); err != nil {
				return err
			}
		}
		return nil
	})
	return reports, err
}

// A child is the inside of such a process.
type child struct {
	trial
	started chan struct{}
	stopped func() // ends the profiles
}

// runChild carries out a trial and returns the exit status.
func runChild(spec string) int {
	c := &child{started: make(chan struct{}), stopped: func() {}}
	if err := json.Unmarshal([]byte(spec), &c.trial); err != nil {
		fmt.Println("failed:", err)
		return 2
	}
	if c.Profile != "" {
		runtime.MemProfileRate = 4 << 10
	}
	go c.listen()
	rep, err := jobs[c.Job](c)
	c.stopped()
	if err != nil {
		select {
		case <-c.started:
			rep.Err = err.Error()
		default:
			fmt.Println("failed:", err)
			return 2
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(rep); err != nil {
		return 2
	}
	return 0
}

// listen waits for the word to begin, and after that for the end of the parent.
func (c *child) listen() {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(2)
	}
	close(c.started)
	io.Copy(io.Discard, in)
	os.Exit(2)
}

// ready says that all is set up, and returns when all others are, too.
func (c *child) ready() error {
	fmt.Println("ready")
	<-c.started
	if c.Profile == "" {
		return nil
	}
	stop, err := profile(c.Profile)
	if err == nil {
		c.stopped = stop
	}
	return err
}

// profile begins a CPU profile. The function that it returns ends it, and writes one of allocations.
func profile(prefix string) (stop func(), err error) {
	cpu, err := os.Create(prefix + ".cpu.prof")
	if err != nil {
		return nil, err
	}
	allocs, err := os.Create(prefix + ".allocs.prof")
	if err != nil {
		return nil, err
	}
	stop = func() {
		pprof.StopCPUProfile()
		pprof.Lookup("allocs").WriteTo(allocs, 0)
		cpu.Close()
		allocs.Close()
	}
	return stop, pprof.StartCPUProfile(cpu)
}
