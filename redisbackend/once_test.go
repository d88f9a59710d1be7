package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	replicas  = 5
	occasions = 200
	onceKeep  = time.Minute
	// set in the environment of a replica: the address of the server, and by how much its clock is
	// late
	replicaEnv = "DISTSYNC_TEST_REPLICA"
)

// TestReplicasRunAJobOnce lets replicas start a job of 5 ms for each of many occasions, at times
// that differ by far more than it takes. Time is compressed: an occasion comes every 10 ms, and the
// last replica is 200 ms behind the first.
func TestReplicasRunAJobOnce(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rdb := connect(t, server.Addr)
	var all sync.WaitGroup
	for i := range replicas {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestReplicaProcess$", "-test.v")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", replicaEnv, server.Addr, 50*i))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("a replica: %v\n%s", err, out)
			}
		})
	}
	all.Wait()
	for i := range occasions {
		if n := wiretest.Must[int64](t)(rdb.Get(t.Context(), runsOf(i)).Int64()); n != 1 {
			t.Errorf("occasion %d: ran %d times", i, n)
		}
		name := fmt.Sprint("once:job@", i)
		if left := wiretest.Must[time.Duration](t)(rdb.PTTL(t.Context(), name).
			Result()); left <= 0 || left > onceKeep {
			t.Errorf("%s is kept for %v", name, left)
		}
	}
	calls := wiretest.Must[int64](t)(rdb.Get(t.Context(), "calls").Int64())
	if calls != replicas*occasions {
		t.Errorf("%d calls", calls)
	}
}

func runsOf(occasion int) string { return fmt.Sprint("runs:", occasion) }

// TestReplicaProcess is one of the processes of TestReplicasRunAJobOnce. By itself it does nothing.
func TestReplicaProcess(t *testing.T) {
	if os.Getenv(replicaEnv) == "" {
		return
	}
	var addr, late string
	if _, err := fmt.Sscan(os.Getenv(replicaEnv), &addr, &late); err != nil {
		t.Fatal(err)
	}
	off := wiretest.Must[int](t)(strconv.Atoi(late))
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client := dlock.New(redisbackend.New(rdb))
	defer client.Close()
	began := time.Now().Add(time.Duration(off) * time.Millisecond)
	for i := range occasions {
		time.Sleep(time.Until(began.Add(time.Duration(i) * 10 * time.Millisecond)))
		ran, err := client.Once(t.Context(), "job", fmt.Sprint(i), onceKeep, func(
			ctx context.Context,
		) error {
			time.Sleep(5 * time.Millisecond)
			return rdb.Incr(ctx, runsOf(i)).Err()
		})
		if err != nil && (ran || !errors.Is(err, dlock.ErrHeld)) {
			t.Errorf("occasion %d: %v, %v", i, ran, err)
		}
		rdb.Incr(t.Context(), "calls")
	}
}
