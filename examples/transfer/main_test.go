package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "TRANSFER_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// With Guard the sum is right, and without it wrong. The program fails if that isn't so.
func TestTransfer(t *testing.T) {
	server := testservers.Postgres(t)
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-postgres",
			testservers.PostgresURL(server.Addr))
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		for _, want := range []string{"the accounts have 350, of 300\n",
			"ann waits, although sam's lease is over\n", "the accounts have 300, of 300\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("the program doesn't say %q, but\n%s", want, out)
			}
		}
	}
}
