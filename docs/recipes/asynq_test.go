package recipes

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func everySecond(s *asynq.Scheduler) error {
	_, err := s.Register("@every 1s", asynq.NewTask("report", nil))
	return err
}

// An enqueuer is a replica with a scheduler.
type enqueuer struct {
	enqueued, stopped atomic.Int32
}

func (e *enqueuer) opts() *asynq.SchedulerOpts {
	return &asynq.SchedulerOpts{
		Logger: stopLogger{&e.stopped},
		PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
			if err == nil {
				e.enqueued.Add(1)
			}
		},
	}
}

// awaits waits until the replica has enqueued so many tasks more.
func (e *enqueuer) awaits(t *testing.T, more int32) {
	t.Helper()
	before := e.enqueued.Load()
	testservers.Until(t, fmt.Sprintf("a replica enqueues %d tasks more", more), func() bool {
		return e.enqueued.Load() >= before+more
	})
}

// A stop logger counts how often schedulers say that they have stopped.
type stopLogger struct{ stopped *atomic.Int32 }

func (stopLogger) Debug(...any) {}
func (stopLogger) Warn(...any)  {}
func (stopLogger) Error(...any) {}
func (stopLogger) Fatal(...any) {}
func (l stopLogger) Info(args ...any) {
	if strings.Contains(fmt.Sprint(args...), "Scheduler stopped") {
		l.stopped.Add(1)
	}
}

// enqueuing runs enqueuers on a Redis, which replicas share.
func enqueuing(t *testing.T) (conn asynq.RedisConnOpt, replica func() *dlock.Client) {
	server := testservers.Redis(t)
	return asynq.RedisClientOpt{Addr: server.Addr}, func() *dlock.Client {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
		t.Cleanup(func() { rdb.Close() })
		return replicaOn(t, redisbackend.New(rdb), dlock.WithLease(2*time.Second))
	}
}

func TestASchedulerInEachReplica(t *testing.T) {
	t.Parallel()
	conn, _ := enqueuing(t)
	var replicas [3]enqueuer
	for i := range replicas {
		s, err := enqueueWrong(conn, replicas[i].opts(), everySecond)
		must(t, err)
		defer s.Shutdown()
	}
	for i := range replicas {
		replicas[i].awaits(t, 1)
	}
}

// A scheduler that only waits for a signal goes on when its replica no longer leads. This test runs
// while no other does, since its signal is for the whole process.
func TestASchedulerThatWaitsForASignal(t *testing.T) {
	conn, replica := enqueuing(t)
	signals := make(chan os.Signal, 1) // so that none ends the test
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)

	var old, next enqueuer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	election := replica().Election("scheduler")
	go func() { done <- enqueueWrongToo(ctx, election, conn, old.opts(), everySecond) }()
	old.awaits(t, 1)
	other := replica()
	depose(t, other)
	testservers.Until(t, "the first knows that it leads no more", func() bool {
		return !election.IsLeader()
	})
	go func() {
		done <- enqueueOnLeader(ctx, other.Election("scheduler"), conn, next.opts(), everySecond)
	}()
	next.awaits(t, 1)
	old.awaits(t, 1)
	cancel()
	ended := 0
	testservers.Until(t, "both end, when there is a signal", func() bool {
		must(t, syscall.Kill(syscall.Getpid(), syscall.SIGTERM))
		for len(done) > 0 {
			<-done
			ended++
		}
		return ended == 2
	})
}

// depose ends the term of the leader.
func depose(t *testing.T, c *dlock.Client) {
	t.Helper()
	if forced, err := c.FencedLocker("scheduler").ForceUnlock(t.Context()); !forced || err != nil {
		t.Fatalf("nobody led, or can be deposed: %v", err)
	}
}

func TestASchedulerOnTheLeader(t *testing.T) {
	t.Parallel()
	conn, replica := enqueuing(t)
	var first, second enqueuer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() {
		done <- enqueueOnLeader(ctx, replica().Election("scheduler"), conn, first.opts(),
			everySecond)
	}()
	first.awaits(t, 1)
	other := replica()
	ends, end := context.WithCancel(ctx)
	go func() {
		done <- enqueueOnLeader(ends, other.Election("scheduler"), conn, second.opts(), everySecond)
	}()
	first.awaits(t, 1)
	if n := second.enqueued.Load(); n != 0 {
		t.Errorf("who doesn't lead has enqueued %d tasks", n)
	}

	depose(t, other)
	testservers.Until(t, "the first's scheduler is shut down", func() bool {
		return first.stopped.Load() == 1
	})
	n := first.enqueued.Load()
	second.awaits(t, 1)
	if after := first.enqueued.Load(); after != n {
		t.Errorf("the first leads no more, and has enqueued %d tasks", after-n)
	}

	end() // and the first leads again, with another scheduler
	first.awaits(t, 1)
	if second.stopped.Load() != 1 {
		t.Error("the first leads before the second's scheduler is shut down")
	}
	cancel()
	for range 2 {
		<-done
	}
}
