package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "FENCED_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func check(t *testing.T, out, refusal string) {
	t.Helper()
	for _, want := range []string{"sam has the lock, with token ", "ann has written: 110\n",
		refusal,
		"(Release: dlock: release \"fenced:account\": lost", "the balance is 110\n",
		"the latest is: ann: 110\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the program doesn't say %q, but\n%s", want, out)
		}
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	store := membackend.New()
	server := httptest.NewServer(newAccount(100))
	defer server.Close()
	account := remote(server.URL)
	err := play(t.Context(), &out, store, account, func(
		ctx context.Context, reports string,
	) (*sleeper, error) {
		return playedSleeper(ctx, store, account, reports)
	})
	if err != nil {
		t.Error(err)
	}
	check(t, out.String(), "is stale: somebody with ")
}

// Here a process is stopped for longer than its lease.
func TestRedis(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-redis", server.Addr)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Error(err)
	}
	check(t, string(out), "lost: a later holder has claimed it")
}
