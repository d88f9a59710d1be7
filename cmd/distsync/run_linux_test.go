package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A trial is a distsync run.
type trial struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr sink
	dir            string // DIR in the command's environment
}

// try prepares a distsync run, which tells in JSON what happens.
func try(t *testing.T, url string, args ...string) *trial {
	t.Helper()
	r := &trial{t: t, dir: t.TempDir()}
	r.cmd = exec.Command(binary, append([]string{"run", "--json", "--store", url}, args...)...)
	r.cmd.Env = append(os.Environ(), "DIR="+r.dir)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	r.cmd.WaitDelay = testservers.Patience
	return r
}

// start starts it. At the end of the test it is gone.
func (r *trial) start() *trial {
	r.t.Helper()
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
	})
	return r
}

// mustExit waits for its end.
func (r *trial) mustExit(status int) {
	r.t.Helper()
	r.cmd.Wait()
	if got := r.cmd.ProcessState.ExitCode(); got != status {
		r.t.Errorf("%q exits with %d, want %d: %s%s", r.cmd.Args[5:], got, status,
			r.stdout.String(), r.stderr.String())
	}
}

// events are what it has told.
func (r *trial) events() (all []progress) {
	r.t.Helper()
	var text string
	for line := range strings.Lines(r.stderr.String()) {
		if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "\n") {
			// the other lines come from the command, or its shell
			text += line
		}
	}
	return lines[progress](r.t, text)
}

// first returns the first event of that name, if there is one.
func (r *trial) first(event string) (progress, bool) {
	r.t.Helper()
	all := r.events()
	i := slices.IndexFunc(all, func(p progress) bool { return p.Event == event })
	if i < 0 {
		return progress{}, false
	}
	return all[i], true
}

// await waits for an event.
func (r *trial) await(event string) (p progress) {
	r.t.Helper()
	testservers.Until(r.t, event+" of "+strings.Join(r.cmd.Args, " "), func() bool {
		var ok bool
		p, ok = r.first(event)
		return ok
	})
	return p
}

// awaitFile waits for a file that the command writes into DIR.
func (r *trial) awaitFile(name string) {
	r.t.Helper()
	testservers.Until(r.t, name, func() bool {
		_, err := os.Stat(filepath.Join(r.dir, name))
		return err == nil
	})
}

func TestRunStatus(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	for _, tt := range []struct {
		args   []string
		status int
	}{
		{[]string{"a", "--", "true"}, 0},
		{[]string{"b", "--", "sh", "-c", "exit 3"}, 3},
		{[]string{"c", "--", "sh", "-c", "kill -TERM $$"}, 143},
		{[]string{"d", "--", "sh", "-c", "kill -KILL $$"}, 137},
		{[]string{"e", "--", "there-is-no-such-command"}, 127},
		{[]string{"f", "--", "/there/is/no/such/command"}, 127},
		{[]string{"g", "--", "/"}, 126},
		{[]string{"h", "--", "/etc/passwd"}, 126},
		{[]string{"i"}, 64},
		{[]string{"i", "--"}, 64},
		{[]string{"i", "true"}, 64},
		{[]string{"i", "j", "--", "true"}, 64},
		{[]string{"", "--", "true"}, 64},
		{[]string{"--", "i", "true"}, 64},
		{[]string{"i", "--kind", "big", "--", "true"}, 64},
		{[]string{"i", "--kind", "fair", "--permits", "1/2", "--", "true"}, 64},
		{[]string{"i", "--permits", "3/2", "--", "true"}, 64},
		{[]string{"slots", "--permits", "2", "--", "true"}, 0},
		{[]string{"i", "--permits", "0", "--", "true"}, 64},
		{[]string{"i", "--permits", "/2", "--", "true"}, 64},
		{[]string{"i", "--wait", "-1s", "--", "true"}, 64},
		{[]string{"i", "--lease", "1ms", "--", "true"}, 64},
		{[]string{"i", "--at-least", "-1s", "--", "true"}, 64},
		{[]string{"i", "--at-least", "1s", "--kind", "read", "--", "true"}, 64},
		{[]string{"i", "--grace", "1m", "--", "true"}, 64},
		{[]string{"i", "-E", "256", "--", "true"}, 64},
		{[]string{"i", "--such", "--", "true"}, 64},
		{[]string{"j", "--timeout", "1ms", "--", "sleep", "1000"}, 124},
		{[]string{"k", "--timeout", "1ms", "--grace", "1ms", "--", "sh", "-c",
			"trap '' TERM; while :; do sleep 1; done"}, 124},
		{[]string{"text", "--", "true"}, 64}, // see below
		{[]string{"text", "--wait", "0", "--", "true"}, 64},
	} {
		server.Do("SET", "text", "no lock")
		r := try(t, url, tt.args...).start()
		r.mustExit(tt.status)
		_, acquired := r.first("acquired")
		_, released := r.first("released")
		if acquired != released {
			t.Errorf("%q: acquired %v, released %v", tt.args, acquired, released)
		}
	}
	if keys := server.Do("DBSIZE"); keys != "2" { // text, and how many slots there are
		t.Errorf("there are %s keys in the store", keys)
	}
	try(t, "redis://"+server.Addr+"/x", "a", "--", "true").start().mustExit(64)
	try(t, "redis://127.0.0.1:"+strconv.Itoa(testservers.FreePort(t)), "a", "--", "true").start().
		mustExit(69)
}

// Machines whose clocks differ by less than --at-least run a quick command once.
func TestRunAtLeast(t *testing.T) {
	anywhere(t, func(t *testing.T, url string) {
		try(t, url, "quick", "--at-least", "1h", "--", "true").start().mustExit(0)
		try(t, url, "quick", "--at-least", "1h", "--wait", "0", "--", "true").start().mustExit(75)
		who, err := client(t, url).Locker("quick").Holder(t.Context())
		if err != nil || !who.Kept {
			t.Errorf("the holder is %+v, %v; want one that has given it back", who, err)
		}
	})
}

// Each kind of lock keeps others out, and says so.
func TestRunKinds(t *testing.T) {
	anywhere(t, func(t *testing.T, url string) {
		c := client(t, url)
		var tokens []string
		for kind, free := range map[string]func() (bool, error){
			"lock": func() (bool, error) { return c.Locker("lock").TryLock(t.Context()) },
			"fair": func() (bool, error) { return c.FairLocker("fair").TryLock(t.Context()) },
			"read": func() (bool, error) {
				return c.RWLocker("read").Writer().TryLock(t.Context())
			},
			"write": func() (bool, error) {
				return c.RWLocker("write").Reader().TryLock(t.Context())
			},
			"fenced": func() (bool, error) { return c.FencedLocker("fenced").TryLock(t.Context()) },
			"1/1": func() (bool, error) {
				n, err := c.Semaphore("1/1", 1).Available(t.Context())
				return n > 0, err
			},
		} {
			flag := "--kind"
			if kind == "1/1" {
				flag = "--permits"
			}
			r := try(t, url, kind, flag, kind, "--", "sh", "-c",
				"read x; env | grep -E '^DISTSYNC_(NAME|HOLDER|TOKEN)='")
			stdin, err := r.cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			r.cmd.Env = append(r.cmd.Env, "DISTSYNC_NAME=another's", "DISTSYNC_HOLDER=another's",
				"DISTSYNC_TOKEN=another's")
			r.start().await("started")
			if free, err := free(); err != nil || free {
				t.Errorf("%s: %v, %v", kind, free, err)
			}
			fmt.Fprintln(stdin)
			r.mustExit(0)
			p, _ := r.first("acquired")
			want := fmt.Sprintf("DISTSYNC_HOLDER=%s\nDISTSYNC_NAME=%s\n", p.Holder, kind)
			if kind == "fenced" {
				tokens = append(tokens, strconv.FormatUint(p.Token, 10))
				want += "DISTSYNC_TOKEN=" + tokens[0] + "\n"
			}
			got := strings.SplitAfter(r.stdout.String(), "\n")
			slices.Sort(got)
			if p.Holder == "" || strings.Join(got, "") != want {
				t.Errorf("%s: the command has %q, want %q", kind, got, want)
			}
			if l, err := c.Inspect(t.Context(), kind); err != nil || len(l.Holders) > 0 {
				t.Errorf("%s: afterwards %+v, %v", kind, l, err)
			}
		}
		if len(tokens) != 1 || tokens[0] == "0" {
			t.Errorf("tokens %q", tokens)
		}
	})
}

func TestRunNotAcquired(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	holder := must(t)(client(t, url).Locker("a").Acquire(t.Context()))
	must(t)(client(t, url).FairLocker("b").Acquire(t.Context()))
	for _, tt := range []struct {
		args   []string
		status int
	}{
		{[]string{"a", "--wait", "0"}, 75},
		{[]string{"a", "--wait", "1s"}, 75},
		{[]string{"a", "--wait", "0", "-E", "0"}, 0},
		{[]string{"b", "--wait", "1s", "-E", "7", "--kind", "fair"}, 7},
	} {
		r := try(t, url, append(tt.args, "--", "sh", "-c", "touch $DIR/inside")...).start()
		r.mustExit(tt.status)
		if _, err := os.Stat(r.dir + "/inside"); err == nil {
			t.Errorf("%q: the command has run", tt.args)
		}
	}
	text := distsyncWith(t, []string{"DISTSYNC_STORE=" + url, "DISTSYNC_WAIT=0s"}, "run", "a", "--",
		"true")
	if text.status != 75 ||
		!strings.Contains(text.stderr, "held by another: "+holder.HolderID()+" has it") ||
		strings.Count(text.stderr, "\n") != 1 {
		t.Errorf("%+v", text)
	}
	if quiet := distsync(t, "run", "a", "--quiet", "--wait", "0", "--store", url, "--",
		"true"); quiet != (result{status: 75}) {
		t.Errorf("%+v", quiet)
	}
	if late := distsyncWith(t, []string{"DISTSYNC_STORE_TIMEOUT=1ns"}, "run", "c", "--store", url,
		"--", "true"); late.status != 69 {
		t.Errorf("%+v", late)
	}
	server.Do("ACL", "SETUSER", "guest", "on", ">secret", "~*", "+ping")
	try(t, "redis://guest:secret@"+server.Addr, "c", "--wait", "1s", "--", "true").start().
		mustExit(69)
}

// crowded is a command that says when it is not alone.
const crowded = `set -C
	echo >"$MARK" || { echo not alone >>"$LOG"; exit 9; }
	echo inside >>"$LOG"
	rm "$MARK"`

func TestRunOneAtATime(t *testing.T) {
	t.Parallel()
	const runs, atATime = 200, 20
	url := "redis://" + testservers.Redis(t).Addr
	dir := t.TempDir()
	swift := dir + "/distsync" // so many take too long with the race detector
	if err := output(exec.Command("go", "build", "-ldflags=-w", "-o", swift, ".")); err != nil {
		t.Fatal(err)
	}
	log, turn := dir+"/log", make(chan struct{}, atATime)
	done := make(chan error)
	for range runs {
		go func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			cmd := exec.Command(swift, "run", "crowd", "--store", url, "--", "sh", "-c", crowded)
			cmd.Env = append(os.Environ(), "MARK="+dir+"/mark", "LOG="+log)
			out, err := cmd.CombinedOutput()
			if err != nil || len(out) > 0 {
				err = fmt.Errorf("%w: %s", err, out)
			}
			done <- err
		}()
	}
	for range runs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(log); string(text) != strings.Repeat("inside\n", runs) {
		t.Errorf("%d times inside, want %d: %v", strings.Count(string(text), "inside"), runs, err)
	}
}

// The members of a family write their names into the log again and again, and ignore requests to
// end: the command, a child, an orphan, and a process in a session of its own.
var (
	member = `trap "" TERM HUP INT; while :; do echo first >>"$LOG"; sleep 0.02; done`
	family = []string{
		"sh", "-c",
		`sh -c "$MEMBER" & (sh -c "$MEMBER" &); setsid sh -c "$MEMBER" & exec sh -c "$MEMBER"`,
	}
)

// However a run ends, everything that it started is dead before another gets the lock.
func TestRunEndsBeforeTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	for scheme, addr := range map[string]string{
		"redis": testservers.Redis(t).Addr,
		"etcd":  testservers.Etcd(t).Addr,
	} {
		url, protocol := scheme+"://"+addr, faults.RESP
		if scheme == "etcd" {
			protocol = faults.HTTP2
		}
		for name, trouble := range map[string]func(*trial, *faults.Proxy){
			"killed":  func(r *trial, _ *faults.Proxy) { r.cmd.Process.Kill() },
			"stopped": func(r *trial, _ *faults.Proxy) { r.cmd.Process.Signal(syscall.SIGSTOP) },
			"silent": func(_ *trial, p *faults.Proxy) {
				p.Block(faults.ToServer | faults.ToClient)
			},
			"cut": func(_ *trial, p *faults.Proxy) { p.Refuse(true); p.Cut() },
		} {
			t.Run(scheme+"/"+name, func(t *testing.T) {
				t.Parallel()
				proxy, err := faults.NewProxy(addr, protocol)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { proxy.Close() })
				log := t.TempDir() + "/log"
				flags := []string{name, "--lease", "6s", "--grace", "1s", "--"}
				first := try(t, scheme+"://"+proxy.Addr(), append(flags, family...)...)
				first.cmd.Env = append(first.cmd.Env, "LOG="+log, "MEMBER="+member)
				first.start().await("started")
				testservers.Until(t, "the family runs", func() bool {
					text, _ := os.ReadFile(log)
					return strings.Count(string(text), "first") > 20
				})
				second := try(t, url, append(flags, "sh", "-c",
					`echo second >>"$LOG"; sleep 0.2`)...)
				second.cmd.Env = append(second.cmd.Env, "LOG="+log)
				second.start().await("waiting")
				trouble(first, proxy)
				second.mustExit(0)
				text, err := os.ReadFile(log)
				if err != nil || !strings.HasPrefix(string(text), "first") ||
					!strings.HasSuffix(string(text), "first\nsecond\n") {
					t.Errorf("%v; the log ends with %q", err, text[max(0, len(text)-100):])
				}
				first.cmd.Process.Signal(syscall.SIGCONT)
				if name != "killed" {
					first.mustExit(76)
				}
				told := map[string][]string{
					"cut":    {"unrenewed", "terminated", "killed"},
					"silent": {"terminated", "killed"}, "stopped": {"lost"},
				}
				for _, event := range told[name] {
					if _, ok := first.first(event); !ok {
						t.Errorf("%s wasn't told: %s", event, first.stderr.String())
					}
				}
			})
		}
	}
}

// A command that obeys is asked in time, and needn't be killed.
func TestRunAsksBeforeItKills(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	proxy, err := faults.NewProxy(server.Addr, faults.RESP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	r := try(t, "redis://"+proxy.Addr(), "a", "--lease", "3s", "--grace", "1500ms", "--",
		"sh", "-c",
		`trap "echo asked; exit 0" TERM; touch $DIR/ready; while :; do sleep 0.01; done`).start()
	r.awaitFile("ready")
	proxy.Block(faults.ToServer)
	r.mustExit(76)
	if _, killed := r.first("killed"); killed || r.stdout.String() != "asked\n" {
		t.Errorf("%s%s", r.stdout.String(), r.stderr.String())
	}
}

// People are told in words why a command was ended.
func TestRunSaysWhy(t *testing.T) {
	t.Parallel()
	for reason := dlock.LossExpired; reason <= dlock.LossPaused; reason++ {
		p := &progress{Event: "killed", Reason: reason.String()}
		if got := p.text("n", false); reason != dlock.LossForced &&
			strings.HasSuffix(got, ": "+reason.String()) {
			t.Errorf("%q", got)
		}
	}
	if got := (&progress{Event: "killed", Reason: "grace"}).text("n",
		false); !strings.HasSuffix(got, "within --grace") {
		t.Errorf("%q", got)
	}
	p := &progress{Event: "terminated", Reason: "timeout"}
	if got, want := p.text("n",
		false),
		"distsync: n: the command is asked to end: it ran for longer than --timeout"; got !=
		want {
		t.Errorf("%q, want %q", got, want)
	}
}

// When the store says that the lock is gone, or another has it, the command is killed without being
// asked.
func TestRunIsKilledWhenTheLockIsGone(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	ctx := t.Context()
	for how, trouble := range map[string]func(name string){
		"by hand": func(name string) { server.Do("DEL", name) },
		"forced": func(name string) {
			c := client(t, url)
			if _, err := c.Locker(name).ForceUnlock(ctx); err != nil {
				t.Error(err)
			}
			must(t)(c.Locker(name).Acquire(ctx))
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := try(t, url, how, "--lease", "3s", "--", "sh", "-c",
				`trap "touch $DIR/asked" TERM; while :; do sleep 0.01; done`).start()
			r.await("started")
			trouble(how)
			r.mustExit(76)
			if p, _ := r.first("lost"); p.Reason != "gone" && p.Reason != "taken" {
				t.Errorf("the loss: %+v", p)
			}
			if _, err := os.Stat(r.dir + "/asked"); err == nil {
				t.Error("the command was asked to end while another could be inside")
			}
		})
	}
}

// The first in line gets the lock for about a second at first, until it is renewed. That is no
// reason to end the command.
func TestRunInLine(t *testing.T) {
	anywhere(t, func(t *testing.T, url string) {
		c := client(t, url)
		for _, lease := range []string{"30s", "3s"} {
			h := must(t)(c.FairLocker(lease).Acquire(t.Context()))
			r := try(t, url, lease, "--kind", "fair", "--lease", lease, "--", "sleep", "0.1").
				start()
			testservers.Until(t, "in line", func() bool {
				l, err := c.Inspect(t.Context(), lease)
				if err != nil {
					t.Error(err)
				}
				return len(l.Line) > 0
			})
			if err := h.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.mustExit(0)
		}
	})
}

// A waiter that is interrupted leaves nothing in the store.
func TestRunInterruptedWaits(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	c := client(t, url)
	must(t)(c.FairLocker("fair").Acquire(t.Context()))
	must(t)(c.Locker("lock").Acquire(t.Context()))
	for _, sig := range ending {
		for _, kind := range []string{"fair", "lock"} {
			t.Run(fmt.Sprint(sig, kind), func(t *testing.T) {
				t.Parallel()
				r := try(t, url, kind, "--kind", kind, "--", "sh", "-c", "touch $DIR/inside").
					start()
				r.await("waiting")
				me := fmt.Sprintf("/%d/", r.cmd.Process.Pid)
				line := func() bool {
					l, err := c.Inspect(t.Context(), "fair")
					if err != nil {
						t.Error(err)
					}
					return slices.ContainsFunc(l.Line, func(id string) bool {
						return strings.Contains(id, me)
					})
				}
				if kind == "fair" {
					testservers.Until(t, "in line", line)
				}
				r.cmd.Process.Signal(sig)
				r.mustExit(128 + int(sig.(syscall.Signal)))
				if line() {
					t.Error("it is still in line")
				}
				if _, err := os.Stat(r.dir + "/inside"); err == nil {
					t.Error("the command has run")
				}
			})
		}
	}
}

// A lock whose grant was lost on the way is also given back.
func TestRunInterruptedBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	// now the server knows the scripts
	try(t, "redis://"+server.Addr, "a", "--", "true").start().mustExit(0)
	proxy, err := faults.NewProxy(server.Addr, faults.RESP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	lost := proxy.LoseReply(func(r faults.Request) bool { return slices.Contains(r.Words, "a") })
	r := try(t, "redis://"+proxy.Addr(), "a", "--", "true").start()
	<-lost
	r.cmd.Process.Signal(syscall.SIGINT)
	r.mustExit(130)
	if server.Do("EXISTS", "a") != "0" {
		t.Error("the lock is held by nobody")
	}
}

// Signals reach the command, and the lock is given back as soon as that has ended.
func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	for _, sig := range slices.Concat(ending, []os.Signal{syscall.SIGWINCH}) {
		r := try(t, url, "a", "--", "sh", "-c",
			fmt.Sprintf(`trap "exit 7" %d; touch $DIR/ready; while :; do sleep 0.01; done`, sig)).
			start()
		r.awaitFile("ready")
		r.cmd.Process.Signal(sig)
		r.mustExit(7)
		if server.Do("EXISTS", "a") != "0" {
			t.Errorf("%v: the lock is still held", sig)
		}
	}
	r := try(t, url, "a", "--", "sleep", "1000").start()
	r.await("started")
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.mustExit(143)
	if server.Do("EXISTS", "a") != "0" {
		t.Error("the lock is still held")
	}
}

// A command that is deaf to TERM has --grace until it is killed, if that was asked for. It doesn't
// matter which process has sent TERM.
func TestRunKillsAfterTerm(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	r := try(t, "redis://"+server.Addr, "a", "--grace", "2s", "--",
		"sh", "-c",
		`trap ": >$DIR/asked" TERM; times=$(seq 2000); touch $DIR/ready
		for i in $times; do sleep 0.01; done`).start()
	r.awaitFile("ready")
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.mustExit(128 + int(syscall.SIGKILL))
	if p, _ := r.first("killed"); p.Reason != "grace" {
		t.Errorf("killed for %q", p.Reason)
	}
	if _, err := os.Stat(r.dir + "/asked"); err != nil {
		t.Error("the command wasn't asked to end")
	}
	if server.Do("EXISTS", "a") != "0" {
		t.Error("the lock is still held")
	}
}

// Without --grace the command may take any time after a TERM that is passed on: the default only
// applies if distsync itself ends the command.
func TestRunLeavesTimeAfterTerm(t *testing.T) {
	t.Parallel()
	// The default is a second here, and the command takes two.
	r := try(t, "redis://"+testservers.Redis(t).Addr, "a", "--lease", "3s", "--",
		"sh", "-c", `trap "sleep 2; exit 5" TERM; touch $DIR/ready; while :; do sleep 0.01; done`).
		start()
	r.awaitFile("ready")
	r.cmd.Process.Signal(syscall.SIGTERM)
	r.mustExit(5)
}

// The command's environment is that of distsync with some variables added.
func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	url := "redis://default:@" + testservers.Redis(t).Addr
	r := try(t, url, "a", "--", "env")
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "A=1", "B="}
	r.start().mustExit(0)
	p, _ := r.first("acquired")
	want := strings.Join(append(r.cmd.Env, "DISTSYNC_NAME=a", "DISTSYNC_HOLDER="+p.Holder), "\n") +
		"\n"
	if r.stdout.String() != want {
		t.Errorf("%q, want %q", r.stdout.String(), want)
	}
}

func TestRunInputPassesThrough(t *testing.T) {
	t.Parallel()
	r := try(t, "redis://"+testservers.Redis(t).Addr, "a", "--", "cat")
	text := strings.Repeat("a line of many\n", 20000)
	r.cmd.Stdin = strings.NewReader(text)
	r.start().mustExit(0)
	if r.stdout.String() != text {
		t.Errorf("%d bytes, want %d", len(r.stdout.String()), len(text))
	}
}

// onTerminal starts a program on a terminal with a person in front of it. It returns what the
// person types and sees.
func onTerminal(
	t *testing.T, url string, args ...string,
) (person io.Writer, screen *sink, cmd *exec.Cmd) {
	t.Helper()
	terminal, master := pty(t)
	cmd = exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "DISTSYNC_STORE="+url, "DISTSYNC="+binary, "PS1=$ ", "ENV=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	screen = new(sink)
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(screen, master)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		terminal.Close() // the last but for orphans
		master.Close()
		<-read
	})
	return master, screen, cmd
}

func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	url := "redis://" + testservers.Redis(t).Addr
	see := func(t *testing.T, screen *sink, what string) {
		t.Helper()
		testservers.Until(t, what, func() bool { return strings.Contains(screen.String(), what) })
	}
	t.Run("reads", func(t *testing.T) {
		t.Parallel()
		person, screen, cmd := onTerminal(t, url, "sh", "-c",
			`"$DISTSYNC" run reads -- sh -c 'read x; echo "one $x"; exit 3'; echo "status $?"
			read x; echo "two $x"`)
		io.WriteString(person, "first\n")
		see(t, screen, "one first")
		see(t, screen, "status 3")
		io.WriteString(person, "second\n") // the terminal is the shell's again
		see(t, screen, "two second")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("interrupts", func(t *testing.T) {
		t.Parallel()
		person, screen, cmd := onTerminal(t, url, binary, "run", "interrupts", "--", "sh", "-c",
			`trap "echo once" INT; echo ready; read x; read x; exit 5`)
		see(t, screen, "ready\r\n")
		io.WriteString(person, "\x03")
		see(t, screen, "once\r\n")
		io.WriteString(person, "\n\n")
		cmd.Wait()
		if status := cmd.ProcessState.ExitCode(); status != 5 ||
			strings.Count(screen.String(), "once") != 1 {
			t.Errorf("status %d: %s", status, screen.String())
		}
	})
	t.Run("stops", func(t *testing.T) {
		t.Parallel()
		person, screen, _ := onTerminal(t, url, "sh", "-i")
		io.WriteString(person,
			`"$DISTSYNC" run stops -- sh -c 'echo "rea"dy; while read x; do echo "go""t $x"; '`+
				`'done; exit 6'`+"\n")
		see(t, screen, "ready\r\n")
		io.WriteString(person, "\x1a")
		see(t, screen, "Stopped")
		io.WriteString(person, "echo \"she\"ll\n")
		see(t, screen, "shell\r\n")
		io.WriteString(person, "fg\n")
		io.WriteString(person, "this\n")
		see(t, screen, "got this\r\n")
		io.WriteString(person, "\x04")
		io.WriteString(person, "echo \"status\" $?\n")
		see(t, screen, "status 6\r\n")
	})
	// Where no shell controls jobs ^Z does nothing.
	t.Run("goes on", func(t *testing.T) {
		t.Parallel()
		person, screen, cmd := onTerminal(t, url, binary, "run", "goes on", "--", "sh", "-c",
			`trap "echo continued" CONT; echo ready; read x; read x; exit 5`)
		see(t, screen, "ready\r\n")
		io.WriteString(person, "\x1a")
		see(t, screen, "continued\r\n")
		io.WriteString(person, "\n\n")
		cmd.Wait()
		if status := cmd.ProcessState.ExitCode(); status != 5 {
			t.Errorf("status %d: %s", status, screen.String())
		}
	})
	// A job in the background that wants to read is stopped, until it is in the foreground.
	t.Run("in the background", func(t *testing.T) {
		t.Parallel()
		person, screen, _ := onTerminal(t, url, "sh", "-i")
		io.WriteString(person,
			`"$DISTSYNC" run background -- sh -c 'echo "rea"dy; read x; echo "go""t $x"' &`+"\n")
		see(t, screen, "ready\r\n")
		testservers.Until(t, "the job is stopped", func() bool {
			io.WriteString(person, "jobs\n")
			time.Sleep(20 * time.Millisecond)
			return strings.Contains(screen.String(), "Stopped")
		})
		io.WriteString(person, "fg\n")
		io.WriteString(person, "this\n")
		see(t, screen, "got this\r\n")
	})
}

// A lock that nobody has any more doesn't wait for its lease, but one of a distsync that was killed
// does.
func TestRunKilledLeavesTheLease(t *testing.T) {
	t.Parallel()
	url := "redis://" + testservers.Redis(t).Addr
	r := try(t, url, "a", "--lease", "1s", "--", "sleep", "1000").start()
	started := r.await("started")
	r.cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	must(t)(client(t, url).Locker("a").Acquire(ctx, dlock.FixedLease(time.Second)))
	testservers.Until(t, "the command is gone", func() bool {
		return syscall.Kill(started.PID, 0) != nil
	})
}
