package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "LIMIT_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// want is the program's output for any store.
const want = `a process with 2 permits of 3 is killed: 1 left
3 processes made 180 calls, never more than 3 at once
its permits came back when its lease was over: 3 left
`

func TestMemory(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	store := membackend.New()
	err := play(t.Context(), &out, store, func(url string, dies bool) process {
		return clientProcess(t.Context(), store, url, dies)
	})
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-redis", server.Addr)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s", err, out)
	}
}
