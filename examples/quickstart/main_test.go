package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "QUICKSTART_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		store := membackend.New()
		err := play(t.Context(), &out, store, func(ctx context.Context) (*victim, error) {
			return clientVictim(ctx, store)
		})
		if err != nil {
			t.Fatal(err)
		}
		checkTimeline(t, out.String())
	})
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	cmd := program(t, "-redis", server.Addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	checkTimeline(t, string(out))
}

func TestUnusableServer(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:1", "no such host", "http://127.0.0.1"} {
		cmd := program(t, "-redis", addr)
		out, err := cmd.CombinedOutput()
		clear := strings.HasPrefix(string(out), "quickstart: ") &&
			strings.Count(string(out), "\n") == 1
		if cmd.ProcessState.ExitCode() != 1 || !clear {
			t.Errorf("-redis %q: %v, output %q; want exit status 1 and one line", addr, err, out)
		}
	}
}

// checkTimeline checks that a timeline shows the events that the example is for.
func checkTimeline(t *testing.T, timeline string) {
	t.Helper()
	inside, entries := "", 0
	for line := range strings.Lines(timeline) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		who, what := fields[1], strings.Join(fields[2:], " ")
		switch {
		case strings.HasPrefix(what, "has the lock"):
			if inside != "" {
				t.Errorf("%s got in while %s was inside", who, inside)
			}
			inside = who
			entries++
		case what == "unlocks", strings.HasPrefix(what, "crashed"):
			if inside != who {
				t.Errorf("%s came out while %q was inside", who, inside)
			}
			inside = ""
		}
	}
	if entries != 6 {
		t.Errorf("the lock was taken %d times, want 6", entries)
	}
	for _, want := range []string{"re-entered: holds 2", "unlocked once: holds 1",
		"crashed while holding", "the lease ran out"} {
		if strings.Count(timeline, want) != 1 {
			t.Errorf("want one %q", want)
		}
	}
	if t.Failed() {
		t.Log(timeline)
	}
}
