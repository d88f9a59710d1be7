package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const want = "the lock is held, on 3 servers\none of them is killed\nthe lock is still held\n3 " +
	"workers have counted to 60\n"

func TestInOneProcess(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, ""); err != nil || out.String() != want {
		t.Errorf("error %v, and the program says\n%swant\n%s", err, &out, want)
	}
}

// Any one of the three servers may be killed.
func TestRedis(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		servers := []*testservers.Server{
			testservers.Redis(t), testservers.Redis(t), testservers.Redis(t),
		}
		var addrs []string
		for _, s := range servers {
			addrs = append(addrs, s.Addr)
		}
		var out bytes.Buffer
		kill := func() {
			servers[i].Kill()
			fmt.Fprintln(&out, "one of them is killed")
		}
		if err := play(t.Context(), &out, addrs, kill); err != nil || out.String() != want {
			t.Errorf("server %d is killed: error %v, and the program says\n%swant\n%s", i, err,
				&out, want)
		}
	}
}

func TestTooFewServers(t *testing.T) {
	if err := run(t.Context(), new(bytes.Buffer), "localhost:6379,localhost:6380"); err == nil ||
		!strings.Contains(err.Error(), "names 2 servers") {
		t.Errorf("error %v", err)
	}
}
