package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// asProgram is the environment variable that makes the test binary run the program.
const asProgram = "LEADER_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// want is the program's output for any store.
const want = `3 processes campaign, and one leads: term 1
it is killed, and another leads when its lease is over: term 2
the new leader is paused, and the third leads when its lease is over: term 3
the one that was paused goes on, and finds that it has lost term 2
the third ends, and the one that was paused leads at once: term 4
`

// counted returns the output with the terms renumbered from 1, since the first term depends on the
// store.
func counted(out string) string {
	count := make(map[string]int)
	return regexp.MustCompile(`term \d+`).ReplaceAllStringFunc(out, func(term string) string {
		if count[term] == 0 {
			count[term] = len(count) + 1
		}
		return fmt.Sprint("term ", count[term])
	})
}

func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		store := membackend.New()
		err := play(t.Context(), &out, func(
			ctx context.Context, says func(line),
		) (*process, error) {
			return playedProcess(ctx, store, says), nil
		})
		if err != nil || counted(out.String()) != want {
			t.Errorf("%v\n%s", err, &out)
		}
	})
}

// A process that is ended doesn't fail, whether it leads or waits. A process that can't campaign
// fails.
func TestHowACampaignEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		ctx, cancel := context.WithCancel(t.Context())
		ends := make(chan error)
		for range 2 {
			go func() { ends <- campaign(ctx, store, func(line) {}) }()
		}
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-ends; err != nil {
				t.Errorf("it was told to end, and says %v", err)
			}
		}
		if err := campaign(t.Context(), plainStore{store}, func(line) {}); !errors.Is(err,
			errors.ErrUnsupported) {
			t.Errorf("on a store without fenced locks it ends with %v", err)
		}
	})
}

// plainStore is a store without fenced locks.
type plainStore struct{ backend.Backend }

func (plainStore) Limits() backend.Limits { return backend.Limits{} }

// Here processes are killed and stopped.
func TestRedis(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-redis", server.Addr)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || counted(string(out)) != want {
		t.Errorf("%v\n%s", err, out)
	}
}
