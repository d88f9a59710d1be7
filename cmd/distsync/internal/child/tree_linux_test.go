package child

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// gone says whether a process is no more, but for a parent that hasn't looked.
func gone(pid int) bool {
	p, ok := lookAt(pid)
	return !ok || p.dead
}

// deaf are the lines of a shell that ignores what asks it to end, and leaves its id in a file.
func deaf(name string) string {
	return `trap '' TERM HUP INT QUIT; echo $$ >$DIR/` + name + `; while :; do sleep 1; done`
}

// A family is a command that has children, grandchildren, some in a group or a session of their
// own, and an orphan, all of them deaf.
var family = []string{"/bin/sh", "-c", `
	sh -c "$CHILD_A" &
	sh -c 'sh -c "$CHILD_B" & sh -c "$CHILD_C"' &
	setsid sh -c "$CHILD_D" &
	(setsid sh -c "$CHILD_E" &)
	timeout 1000 sh -c "$CHILD_F" &
	(sh -c "$CHILD_G" &)
	` + deaf("command")}

// startFamily returns a run of the family, and the ids of its members, the command's first.
func startFamily(t *testing.T, until string) (*run, []int) {
	t.Helper()
	names := []string{"A", "B", "C", "D", "E", "F", "G"}
	r := start(t, func(cmd *exec.Cmd) {
		for _, n := range names {
			cmd.Env = append(cmd.Env, "CHILD_"+n+"="+deaf(n))
		}
	}, until, family...)
	pids := []int{r.pid("command")}
	for _, n := range names {
		pids = append(pids, r.pid(n))
	}
	return r, append(pids, r.group)
}

func TestKillReachesAll(t *testing.T) {
	t.Parallel()
	r, pids := startFamily(t, forever)
	r.order("signal 15")
	r.mustLive(pids...)
	r.tell("kill")
	r.mustEnd(137)
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("the command has ended, but process %d hasn't", pid)
		}
	}
}

func TestAllEndWithAProgramThatIsKilled(t *testing.T) {
	t.Parallel()
	r, pids := startFamily(t, forever)
	r.mustLive(pids...)
	r.cmd.Process.Kill()
	r.mustBeGone(pids...)
}

func TestAllEndWhenTimeIsUp(t *testing.T) {
	t.Parallel()
	r, pids := startFamily(t, forever)
	r.order("until 2h")
	r.mustLive(pids...)
	r.tell("until 1ms")
	r.mustEnd(137)
	r.mustBeGone(pids...)
}

func TestAllEndWhenTimeIsUpForAProgramThatIsStopped(t *testing.T) {
	t.Parallel()
	r, pids := startFamily(t, forever)
	r.order("until 200ms") // in which it is stopped
	r.cmd.Process.Signal(syscall.SIGSTOP)
	r.mustBeGone(pids[:len(pids)-1]...)
	r.cmd.Process.Signal(syscall.SIGCONT)
	r.mustEnd(137)
}

func TestAllEndWithAGuardThatIsKilled(t *testing.T) {
	t.Parallel()
	r, pids := startFamily(t, forever)
	syscall.Kill(r.group, syscall.SIGKILL)
	r.mustEnd(137)
	r.mustBeGone(pids...)
}

// Where nobody is left to do it, the kernel kills the command.
func TestTheCommandEndsWithTheGuardWhileTheProgramIsStopped(t *testing.T) {
	t.Parallel()
	r := start(t, nil, forever, "/bin/sh", "-c", deaf("command"))
	command := r.pid("command")
	r.cmd.Process.Signal(syscall.SIGSTOP)
	syscall.Kill(r.group, syscall.SIGKILL)
	r.mustBeGone(command)
	r.cmd.Process.Signal(syscall.SIGCONT)
	r.mustEnd(137)
}

func TestAllEndWithAStoppedGuard(t *testing.T) {
	t.Parallel()
	r, pids := startFamily(t, forever)
	syscall.Kill(r.group, syscall.SIGSTOP)
	r.tell("kill")
	r.mustEnd(137)
	r.mustBeGone(pids...)
}

// A command that has ended takes its group along, but not a daemon.
func TestWhatACommandLeavesBehind(t *testing.T) {
	t.Parallel()
	var stdin io.WriteCloser
	r := start(t, func(cmd *exec.Cmd) {
		stdin, _ = cmd.StdinPipe()
		cmd.Env = append(cmd.Env, "LEFT="+deaf("left"), "DAEMON="+deaf("daemon"))
	}, forever, "/bin/sh", "-c",
		`(sh -c "$LEFT" &); setsid sh -c "$DAEMON" >/dev/null 2>&1 & read x; exit 5`)
	left, daemon := r.pid("left"), r.pid("daemon")
	t.Cleanup(func() { syscall.Kill(daemon, syscall.SIGKILL) })
	io.WriteString(stdin, "go\n")
	r.mustEnd(5)
	if !gone(left) {
		t.Error("the command has ended, but not its group")
	}
	r.mustLive(daemon)
}

// Processes of other users can't be killed, and aren't waited for.
func TestOfAnotherUser(t *testing.T) {
	t.Parallel()
	switch {
	case os.Getuid() == 0:
	case os.Getenv("DISTSYNC_REQUIRE_SERVERS") == "1":
		t.Fatal("only root can be another user")
	default:
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "child")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = errors.Join(os.WriteFile(dir+"/program", binary, 0o755), os.Chmod(dir, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	for _, end := range []struct {
		order, answer string
	}{{"signal 15", "ended 143 spared 1"}, {"kill", "ended 137 spared 1"}} {
		r := start(t, func(cmd *exec.Cmd) {
			cmd.Path = dir + "/program"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody,
				Gid: nobody}}
		}, forever, "/bin/sleep", "1000")
		other := exec.Command("/bin/sh", "-c", "trap '' TERM; echo; read x")
		other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: r.group}
		stdin, _ := other.StdinPipe()
		stdout, _ := other.StdoutPipe()
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		stdout.Read(make([]byte, 1))
		r.tell(end.order)
		answer := r.answer()
		for strings.HasPrefix(answer, "done") {
			answer = r.answer()
		}
		if answer != end.answer {
			t.Errorf("%s: the program says %q, want %q", end.order, answer, end.answer)
		}
		r.mustLive(other.Process.Pid)
		stdin.Close()
		other.Wait()
	}
}

// A process whose first thread has ended is not dead.
func TestLookAt(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "exec sleep 1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, ok := lookAt(cmd.Process.Pid)
	if !ok || p.dead || p.parent != os.Getpid() || p.group != syscall.Getpgrp() {
		t.Errorf("%+v, %v", p, ok)
	}
	other := p
	other.started = "1"
	if err := other.kill(); err != os.ErrProcessDone {
		t.Errorf("a process that began at another time: %v", err)
	}
	if err := p.kill(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(patience); !gone(p.pid) &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if p, ok := lookAt(p.pid); !ok || !p.dead {
		t.Errorf("killed, and not waited for: %+v, %v", p, ok)
	}
	cmd.Wait()
	if p, ok := lookAt(p.pid); ok {
		t.Errorf("gone: %+v", p)
	}
}
