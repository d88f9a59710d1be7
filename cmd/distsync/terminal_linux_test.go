package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// typed runs the binary on a terminal where a person types answer at the prompt. It returns the
// screen's text.
func typed(t *testing.T, answer string, args ...string) (seen string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	terminal, person := pty(t)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	var text strings.Builder
	read := bufio.NewReader(person)
	for {
		b, err := read.ReadByte()
		if err != nil { // the last who had the terminal is gone
			break
		}
		text.WriteByte(b)
		if strings.HasSuffix(text.String(), "[y/N] ") {
			if _, err := io.WriteString(person, answer); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	return strings.ReplaceAll(text.String(), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// On a terminal tables fit, and are in colours; and nobody is robbed of a lock without a yes.
func TestTerminal(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	web := client(t, url,
		dlock.WithClientID("a-host-with-a-long-name.example.com/4711/abcdefghijklmnop"))
	name := "orders:" + strings.Repeat("0123456789", 5)
	must(t)(web.Locker(name).Acquire(t.Context()))

	seen, status := typed(t, "", "ls", "--store", url)
	if status != 0 || !strings.HasPrefix(seen, "\x1b[1mNAME") {
		t.Errorf("ls: status %d: %q", status, seen)
	}
	for line := range strings.Lines(strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").
		Replace(seen)) {
		if n := columns(strings.TrimSpace(line)); n > 60 {
			t.Errorf("%d columns on a terminal of 60: %q", n, line)
		}
	}

	for answer, want := range map[string]int{
		"\n":    exitFailed,
		"n\n":   exitFailed,
		"nay\n": exitFailed,
		"\x04":  exitFailed,
	} {
		seen, status := typed(t, answer, "unlock", "--force", name, "--store", url)
		if status != want || !strings.Contains(seen, "a-host-with-a-lon") ||
			!strings.Contains(seen, "nothing was done") {
			t.Errorf("answer %q: status %d: %s", answer, status, seen)
		}
		if server.Do("EXISTS", name) != "1" {
			t.Fatalf("answer %q: the lock is gone", answer)
		}
	}
	seen, status = typed(t, "Yes\n", "unlock", "--force", name, "--store", url)
	if status != 0 || !strings.Contains(seen, "taken from a-host") ||
		server.Do("EXISTS", name) != "0" {
		t.Errorf("answer yes: status %d: %s", status, seen)
	}
}

// A lock that gets another holder while the person thinks isn't taken away.
func TestUnlockSomebodyElse(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	first, second := client(t, url, dlock.WithClientID("first")),
		client(t, url, dlock.WithClientID("second"))
	hold := must(t)(first.Locker("n").Acquire(t.Context()))

	terminal, person := pty(t)
	cmd := exec.Command(binary, "unlock", "--force", "n", "--store", url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	out := new(sink)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(out, person) // ends with an error when the last who had the terminal is gone
	}()
	testservers.Until(t, "it asks", func() bool { return strings.Contains(out.String(), "[y/N]") })
	if err := hold.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t)(second.Locker("n").Acquire(t.Context()))
	if _, err := io.WriteString(person, "y\n"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	<-copied
	if cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(out.String(), "second:") ||
		server.Do("EXISTS", "n") != "1" {
		t.Errorf("%v: %s", cmd.ProcessState, out)
	}
}

// watch ends cleanly when it is told to.
func TestWatchSignals(t *testing.T) {
	t.Parallel()
	url := "redis://" + testservers.Redis(t).Addr
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd := exec.Command(binary, "watch", "n", "--store", url)
		out := new(sink)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testservers.Until(t, "it watches", func() bool {
			return strings.Contains(out.String(), "n  free\n")
		})
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v: %s", sig, err, out)
		}
	}
}
