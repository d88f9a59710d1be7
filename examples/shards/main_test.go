package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "SHARDS_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// want is the program's output for any store.
const want = `three replicas have started: 3 have 8 shards each
one is killed, and its lease is over: 2 have 12 shards each
another has started: 3 have 8 shards each
one is deployed anew: 3 have 8 shards each
`

func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		store := membackend.New()
		err := play(t.Context(), &out, store, func(name string) (*replica, error) {
			return played(store, name), nil
		})
		if err != nil || out.String() != want {
			t.Errorf("%v\n%s", err, &out)
		}
	})
}

// On a terminal the table of replicas and their shards is redrawn each second.
func TestDraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := &watcher{out: &out, draws: true}
		wants := func(want string) {
			t.Helper()
			if out.String() != want {
				t.Errorf("drawn is\n%q, want\n%q", &out, want)
			}
			out.Reset()
		}
		w.draw([]string{"B", "A", "B", "."})
		wants(".            3\nA      1      \nB   0     2   \n\n\n")
		time.Sleep(time.Second / 2)
		w.draw([]string{"A", "A", "A", "A"})
		wants("")
		time.Sleep(time.Second / 2)
		w.draw([]string{"A", "A", "A", "A"})
		wants("\x1b[5A\x1b[JA   0  1  2  3\n\n\n\n\n")
		w.clear()
		wants("\x1b[5A\x1b[J")
	})
}

// Here replicas are processes, one of which is killed.
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
