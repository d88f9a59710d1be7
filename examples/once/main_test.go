package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "ONCE_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// want is the program's output for any store.
const want = `a replica begins the report of monday, and is killed
monday: 1 of 3 replicas made the report, 2 found it made
tuesday: 1 of 3 replicas made the report, 2 found it made
wednesday: 1 of 3 replicas made the report, 2 found it made
`

func TestMemory(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	store := membackend.New()
	err := play(t.Context(), &out, func(late time.Duration, dies bool) process {
		return clientProcess(t.Context(), store, "report", late, dies)
	})
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	for range 2 { // a second run can follow at once
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-redis", server.Addr)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
