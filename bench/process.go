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

// Each measurement runs in new processes, so that earlier measurements don't affect it. A process
// reads its trial from an environment variable. It prints "ready" when it is set up, starts when it
// reads a line, and finally writes its report. It exits at once if its standard input is closed.

const trialVariable = "DISTSYNC_BENCH_TRIAL"

// A trial describes the task of one process.
type trial struct {
	Job       string
	Contender string // the contender's key
	Addr      string // the address of the server to use
	Server    string // the server's own address, even if Addr is a proxy
	Name      string // the name of the lock, or the prefix of the names
	Lease     time.Duration
	Duration  time.Duration
	Profile   string // prefix of the profiles' file names; if empty, don't profile

	Goroutines int
	Naming     naming
	Endless    bool   // goroutines use contexts that never end
	Unpinned   bool   // don't pin the process: races need more than one CPU
	Shared     string // the file of the shared critical section

	Count int // the number of locks or waiters
	Pairs int // number of holder/waiter pairs, which communicate through pipes
	Holds [2]time.Duration

	Kind   kind
	Writes int           // percentage of writes, for read-write locks
	Inside time.Duration // time spent in the critical section on each turn
}

// measured holds the measurements of a process.
type measured struct {
	Err     string
	Counts  []int64 // acquisitions, by goroutine
	Entries int64   // entries into the critical section, including those after the trial's duration
	Reads   int64   // the shared entries
	Clashes int64   // entries while another party was inside
	Waits   histogram
	Writes  histogram // the waits of exclusive parties
	Pairs   histogram // durations of lock and unlock pairs
	Longest time.Duration
	Inside  []time.Time // when each of the locks was acquired
	Values  values
}

// values maps the key of each metric to its value.
type values map[string]float64

// patience is how long a process may take beyond the trial's duration.
const patience = 2 * time.Minute

// A process is the parent's view of a process that carries out a trial.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	out     *bufio.Reader
	errs    bytes.Buffer
	watch   *time.Timer
	expired atomic.Bool
}

// launch starts a process. It pins the process to the clients' CPU, unless the trial is unpinned.
// The process inherits files as descriptors 3 and up.
func (l *lab) launch(t trial, files ...*os.File) (*process, error) {
	if t.Profile != "" {
		l.launched++ // a trial may have several processes, each with its own profiles
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

// command returns the command that runs a process for a trial.
func (l *lab) command(t trial) (*exec.Cmd, error) {
	if contenderBy(t.Contender).isJava() {
		return l.javaCommand(t)
	}
	self, err := os.Executable()
	return exec.Command(self), err
}

// ready waits until the process is set up.
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

// begin starts the trial in the process.
func (p *process) begin() error {
	_, err := io.WriteString(p.stdin, "go\n")
	return err
}

// finish waits for the process's report, and then for its exit.
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

// end closes the process's input, which makes the process exit, and waits until it has exited.
func (p *process) end() {
	p.stdin.Close()
	io.Copy(io.Discard, p.out)
	p.cmd.Wait() // ignore the exit status: the output shows how the trial ended
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

// perform runs each trial in its own process. Once all processes are ready, it calls the given
// function, and passes it a function that starts all trials and waits for their reports. So the
// given function can measure the run.
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

// A child holds the state of a trial inside the process that carries it out.
type child struct {
	trial
	started chan struct{}
	stopped func() // ends the profiles
}

// runChild carries out a trial, and returns the exit status.
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

// listen waits for the line that starts the trial. When the input ends after that, listen ends this
// process, because the parent has ended.
func (c *child) listen() {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(2)
	}
	close(c.started)
	io.Copy(io.Discard, in)
	os.Exit(2)
}

// ready announces that this process is ready, and waits until all processes are.
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

// profile starts a CPU profile. stop ends that profile and writes an allocation profile.
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
