package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// binary is the command, built with the race detector.
var binary string

func TestMain(m *testing.M) {
	apart.SideBySide(6)
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		ofTests := name == "DISTSYNC_REQUIRE_SERVERS" || name == depth.Variable
		if strings.HasPrefix(name, "DISTSYNC_") && !ofTests {
			os.Unsetenv(name)
		}
	}
	// under nohup, which has it ignored, what is started here would ignore it, too
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or each ends a second late
	dir, err := os.MkdirTemp("", "distsync")
	if err == nil {
		binary = filepath.Join(dir, "distsync")
		err = output(exec.Command("go", "build", "-race", "-ldflags=-w", "-o", binary, "."))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	if code == 0 {
		code = leaks()
	}
	os.Exit(code)
}

// leaks returns 1 if goroutines of the tests stay.
func leaks() int {
	var err error
	for end := time.Now().Add(testservers.Patience); time.Now().Before(end); {
		if err = goleak.Find(wiretest.ValkeyLingers()...); err == nil {
			return 0
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// output runs a command that has nothing to say unless it fails.
func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// A result is what a command has written, and its exit status.
type result struct {
	stdout, stderr string
	status         int
}

// distsync runs the binary with arguments, to its end.
func distsync(t *testing.T, args ...string) result {
	t.Helper()
	return distsyncWith(t, nil, args...)
}

// distsyncWith is distsync with more environment variables.
func distsyncWith(t *testing.T, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// inside carries out a command in this process.
func inside(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	status := execute(ctx, args, strings.NewReader(""), &stdout, &stderr)
	return result{stdout.String(), stderr.String(), status}
}

// client returns a client for a store.
func client(t *testing.T, url string, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	g := global{store: url, timeout: testservers.Patience}
	b, closeStore, err := g.openStore(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeStore)
	c := dlock.New(b, append(opts, dlock.WithLogger(slog.New(slog.DiscardHandler)))...)
	t.Cleanup(func() { c.Close() })
	return c
}
