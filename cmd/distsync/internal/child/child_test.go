//go:build linux

package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		script string
		want   int
	}{
		{"true", 0},
		{"exit 3", 3},
		{"exit 255", 255},
		{"kill -TERM $$", 143},
		{"kill -KILL $$", 137},
		{"kill -SEGV $$", 139},
	} {
		start(t, nil, forever, "/bin/sh", "-c", tt.script).mustEnd(tt.want)
	}
}

func TestACommandThatCannotStart(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		"/nothing/there": syscall.ENOENT,
		"/":              syscall.EACCES,
		script:           syscall.ENOEXEC,
	} {
		r := prepared(t, nil, forever, path)
		if answer := r.answer(); answer != "failed "+want.Error() {
			t.Errorf("%s: %s, want %v", path, answer, want)
		}
	}
}

func TestWhenTimeIsUpBeforeTheBeginning(t *testing.T) {
	t.Parallel()
	r := prepared(t, nil, "-1s", "/bin/sleep", "1000")
	if answer := r.answer(); strings.HasPrefix(answer, "started") {
		r.mustEnd(137)
	}
}

func TestInputPassesThrough(t *testing.T) {
	t.Parallel()
	var stdin io.WriteCloser
	r := start(t, func(cmd *exec.Cmd) { stdin, _ = cmd.StdinPipe() }, forever, "/bin/cat")
	for i := range 10000 {
		fmt.Fprintln(stdin, i)
	}
	stdin.Close()
	r.mustEnd(0)
	if out := r.output.String(); !strings.HasPrefix(out, "0\n1\n2\n") ||
		!strings.HasSuffix(out, "\n9999\n") {
		t.Errorf("%d bytes: %.20q", len(out), out)
	}
}

// File descriptors that are inherited beside standard input, output and error keep their numbers,
// and none is added.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("of the shell\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const script = "cat <&6; ls /proc/self/fd || true"
	direct := exec.Command("/bin/sh", "-c", script)
	direct.ExtraFiles = []*os.File{nil, nil, nil, f, f}
	want, err := direct.Output()
	if err != nil {
		t.Fatal(err)
	}
	f.Seek(0, io.SeekStart)
	// The first two are the program's own.
	r := start(t, func(cmd *exec.Cmd) { cmd.ExtraFiles = append(cmd.ExtraFiles, nil, f, f) },
		forever, "/bin/sh", "-c", script)
	r.mustEnd(0)
	if r.output.String() != string(want) {
		t.Errorf("%q, want %q", r.output.String(), want)
	}
}

// A command finds signals as the program has found them: neither ignored nor blocked, but for those
// that were.
func TestDispositions(t *testing.T) {
	t.Parallel()
	const show = "grep ^Sig[BIC] /proc/self/status"
	for _, before := range []string{"", "trap '' HUP; ", "trap '' INT; "} {
		direct, err := exec.Command("/bin/sh", "-c", before+show).Output()
		if err != nil {
			t.Fatal("there is no /proc/self/status:", err)
		}
		r := start(t, func(cmd *exec.Cmd) {
			cmd.Args = append([]string{"/bin/sh", "-c", before + `exec "$0" "$@"`, cmd.Path},
				cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
		}, forever, "/bin/sh", "-c", show)
		r.mustEnd(0)
		if r.output.String() != string(direct) {
			t.Errorf("%q\n%swant\n%s", before, r.output.String(), direct)
		}
	}
}

func TestSignal(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		// The child of the command hears it, too: the shell waits for it and ends with what it ends
		// with.
		r := start(t, func(cmd *exec.Cmd) {
			cmd.Env = append(cmd.Env, fmt.Sprintf("SIG=%d", sig))
		}, forever,
			"/bin/sh", "-c",
			`trap : $SIG
			sh -c 'trap "exit 7" $SIG; echo $$ >$DIR/inner; while :; do sleep 0.01; done'
			exit $?`)
		r.pid("inner")
		r.tell(fmt.Sprintf("signal %d", sig))
		r.mustEnd(7)
	}
}

// timeout(1) leaves the group for one of its own, as shells that control jobs do, and setsid(1).
func TestSignalToACommandThatHasLeftTheGroup(t *testing.T) {
	t.Parallel()
	setsid := testservers.Program(t, "setsid")
	r := start(t, nil, forever, setsid, "/bin/sh", "-c",
		`trap "exit 7" TERM; echo $$ >$DIR/inner; while :; do sleep 0.01; done`)
	r.pid("inner")
	r.tell("signal 15")
	r.mustEnd(7)
}

func TestStopAndContinue(t *testing.T) {
	t.Parallel()
	r := start(t, func(cmd *exec.Cmd) {
		cmd.StdinPipe() // nothing comes
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}, forever, "/bin/sh", "-c", `trap "exit 7" TERM; echo $$ >$DIR/inner; read x; read x`)
	inner := r.pid("inner")
	r.order(fmt.Sprintf("signal %d", syscall.SIGTSTP))
	r.eventually("the command is stopped", func() bool { return state(inner) == "T" })
	r.order(fmt.Sprintf("signal %d", syscall.SIGTERM)) // is heard when it is continued
	r.tell(fmt.Sprintf("signal %d", syscall.SIGCONT))
	r.mustEnd(7)
}

// state returns what ps says of a process: S, T, …
func state(pid int) string {
	out, _ := exec.Command("ps", "-o", "state=", "-p", fmt.Sprint(pid)).Output()
	return string(out[:min(1, len(out))])
}

// After the end everything can still be called.
func TestAfterTheEnd(t *testing.T) {
	t.Parallel()
	c, err := Start("/bin/sh", []string{"sh", "-c", "exit 3"}, os.Environ(),
		time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	<-c.Ended
	c.Signal(syscall.SIGTERM)
	c.Until(time.Now())
	c.Kill()
	if c.Status.Exit() != 3 || c.Status.Spared != 0 {
		t.Errorf("%+v", c.Status)
	}
	if _, err := Start("/nothing/there", []string{"x"}, nil,
		time.Now().Add(time.Hour)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
