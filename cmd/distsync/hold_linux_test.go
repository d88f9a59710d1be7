package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// tryHold prepares a distsync hold, which tells in JSON what happens, on its standard output.
func tryHold(t *testing.T, url string, args ...string) *trial {
	t.Helper()
	r := try(t, url, args...)
	r.cmd.Args[1] = "hold"
	r.cmd.Stdout, r.cmd.Stderr = &r.stderr, &r.stdout
	return r
}

func TestHold(t *testing.T) {
	t.Parallel()
	url := "redis://" + testservers.Redis(t).Addr
	c := client(t, url)
	free := map[string]func() (bool, error){
		"lock":   func() (bool, error) { return c.Locker("lock").TryLock(t.Context()) },
		"write":  func() (bool, error) { return c.RWLocker("write").Reader().TryLock(t.Context()) },
		"fenced": func() (bool, error) { return c.FencedLocker("fenced").TryLock(t.Context()) },
	}
	for kind, sig := range map[string]os.Signal{
		"lock": os.Interrupt, "write": syscall.SIGTERM, "fenced": syscall.SIGHUP,
	} {
		r := tryHold(t, url, "--kind", kind, kind).start()
		p := r.await("acquired")
		if p.Holder == "" || (p.Token > 0) != (kind == "fenced") {
			t.Errorf("%s: %+v", kind, p)
		}
		if free, err := free[kind](); err != nil || free {
			t.Errorf("%s: while it is held TryLock says %v, %v", kind, free, err)
		}
		if err := r.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		r.mustExit(0)
		if _, released := r.first("released"); !released {
			t.Errorf("%s: %s", kind, r.stderr.String())
		}
		if free, err := free[kind](); err != nil || !free {
			t.Errorf("%s: afterwards TryLock says %v, %v", kind, free, err)
		}
	}
}

// A loss of the lock is reported, and ends the command.
func TestHoldLost(t *testing.T) {
	t.Parallel()
	url := "redis://" + testservers.Redis(t).Addr
	r := tryHold(t, url, "a", "--lease", "1s").start()
	r.await("acquired")
	if ok, err := client(t, url).Locker("a").ForceUnlock(t.Context()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	r.mustExit(76)
	if p, ok := r.first("lost"); !ok || p.Reason != "gone" {
		t.Errorf("%+v, %v", p, ok)
	}
}

func TestHoldStatus(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	must(t)(client(t, url).Locker("taken").Acquire(t.Context()))
	for _, tt := range []struct {
		args   []string
		status int
	}{
		{[]string{"taken", "--wait", "0"}, 75},
		{[]string{"taken", "--wait", "1s", "-E", "7"}, 7},
		{[]string{"taken", "--permits", "1/2"}, 64},
		{[]string{}, 64},
		{[]string{""}, 64},
		{[]string{"a", "b"}, 64},
		{[]string{"a", "--kind", "big"}, 64},
		{[]string{"a", "--lease", "1ms"}, 64},
		{[]string{"a", "--wait", "-1s"}, 64},
		{[]string{"a", "--at-least", "1s"}, 64}, // a flag of run
	} {
		tryHold(t, url, tt.args...).start().mustExit(tt.status)
	}
	nobody := "redis://127.0.0.1:" + strconv.Itoa(testservers.FreePort(t))
	tryHold(t, nobody, "a").start().mustExit(69)

	waits := tryHold(t, url, "taken").start()
	waits.await("waiting")
	if err := waits.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waits.mustExit(128 + 15)
}

// If the store doesn't take the lock back, a second signal ends the program.
func TestHoldNotGivenBack(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	r := tryHold(t, "redis://"+server.Addr, "a", "--lease", "10m").start()
	r.await("acquired")
	server.Stop()
	defer server.Cont()
	testservers.Until(t, "it leaves the lock to the store", func() bool {
		// signals may count as one
		_ = r.cmd.Process.Signal(os.Interrupt)
		_, told := r.first("unreleased")
		return told
	})
	r.mustExit(69)
}

// People read what happens to the lock, unless they want to hear nothing of it.
func TestHoldTellsPeople(t *testing.T) {
	t.Parallel()
	url := "redis://" + testservers.Redis(t).Addr
	c := client(t, url)
	for _, quiet := range []bool{false, true} {
		cmd := exec.Command(binary, "hold", "a", "--store", url,
			"--quiet="+strconv.FormatBool(quiet))
		out := new(sink)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testservers.Until(t, "it has the lock", func() bool {
			l, err := c.Inspect(t.Context(), "a")
			return err == nil && len(l.Holders) == 1
		})
		if !quiet {
			testservers.Until(t, "it says so", func() bool {
				return strings.Contains(out.String(), "held")
			})
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			// A signal that comes before the answer of the store has ended the wait.
			if !quiet || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGINT) {
				t.Errorf("quiet %v: %v: %s", quiet, err, out)
			}
		}
		want := `^distsync: a: waiting for the lock\n` +
			`distsync: a: held, as \S+:\d+\ndistsync: a: released\n$`
		if quiet {
			want = "^$"
		}
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("quiet %v: %q", quiet, out)
		}
	}
}
