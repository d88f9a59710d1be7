package gocronlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

// replica is a process with a scheduler, whose jobs are fired by order: "quick NAME", or "hang
// NAME", which doesn't end; and "elect" makes a job that runs again and again on the leader. It
// says "begun NAME", "ran NAME", "skipped NAME", and "led".
func replica(addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := dlock.New(redisbackend.New(rdb), dlock.WithLease(2*time.Second),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	silent := gocronlock.WithLogger(slog.New(slog.DiscardHandler))
	quickly := gocronlock.NewLocker(client, gocronlock.WithAtLeast(10*time.Minute), silent)
	// Only the run keeps others out. A lock that is to be kept for long would still be kept after
	// its process died.
	slowly := gocronlock.NewLocker(client, gocronlock.WithAtLeast(0), silent)
	s, err := gocron.NewScheduler()
	if err != nil {
		return err
	}
	s.Start()
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		verb, name, _ := strings.Cut(orders.Text(), " ")
		switch verb {
		case "elect":
			err = lead(client)
		case "quick":
			err = fireJob(s, quickly, name, false)
		case "hang":
			err = fireJob(s, slowly, name, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func fireJob(s gocron.Scheduler, locker *gocronlock.Locker, name string, hangs bool) error {
	task := locker.Task(name, func(context.Context) error {
		fmt.Println("begun", name)
		if hangs {
			select {}
		}
		fmt.Println("ran", name)
		return nil
	})
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), task,
		gocron.WithName(name), gocron.WithDistributedJobLocker(locker),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
			if errors.Is(err, dlock.ErrHeld) {
				fmt.Println("skipped", name)
			}
		})))
	return err
}

func lead(client *dlock.Client) error {
	elector := gocronlock.NewElector(client, "leader")
	go elector.Run(context.Background())
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		return err
	}
	s.Start()
	_, err = s.NewJob(gocron.DurationJob(50*time.Millisecond), elector.Task(func(
		context.Context,
	) error {
		fmt.Println("led")
		return nil
	}))
	return err
}

func startFleet(t *testing.T) []*fleet.Replica {
	server := testservers.Redis(t)
	all := make([]*fleet.Replica, 3)
	for i := range all {
		all[i] = fleet.Start(t, server.Addr)
	}
	return all
}

func TestAJobRunsOnceInThreeProcesses(t *testing.T) {
	t.Parallel()
	all := startFleet(t)
	for _, r := range all {
		r.Order("quick first")
	}
	testservers.Until(t, "each has run the job or skipped it", func() bool {
		return fleet.Count("ran first", all...)+fleet.Count("skipped first", all...) == 3
	})
	if n := fleet.Count("ran first", all...); n != 1 {
		t.Errorf("a job ran %d times", n)
	}
}

// fireOn has a replica run a job, and waits for what becomes of it.
func fireOn(t *testing.T, r *fleet.Replica, name string) {
	t.Helper()
	seen := func() int { return fleet.Count("ran "+name, r) + fleet.Count("skipped "+name, r) }
	before := seen()
	r.Order("quick", name)
	testservers.Until(t, "the job has run or was skipped", func() bool { return seen() > before })
}

func TestAJobOfAProcessThatIsKilledRunsElsewhereOnce(t *testing.T) {
	t.Parallel()
	all := startFleet(t)
	dying, others := all[0], all[1:]
	dying.Order("hang report")
	dying.Await("begun report")
	for _, r := range others {
		fireOn(t, r, "report")
	}
	if n := fleet.Count("begun report", all...); n != 1 {
		t.Errorf("while a job runs %d more replicas run it", n-1)
	}
	dying.Kill()
	for i := 0; fleet.Count("ran report", others...) == 0 && i < 10000; i++ {
		fireOn(t, others[i%2], "report") // as each period does
	}
	for _, r := range others {
		fireOn(t, r, "report")
	}
	if n := fleet.Count("ran report", all...); n != 1 {
		t.Errorf("the job of a process that was killed ran %d times", n)
	}
}

func TestAnotherLeadsWhenTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	all := startFleet(t)
	for _, r := range all {
		r.Order("elect")
	}
	leader := fleet.AwaitAny(t, "led", all...)
	if n := len(leaders(all)); n != 1 {
		t.Errorf("%d replicas lead", n)
	}
	all[leader].Kill()
	rest := append(append([]*fleet.Replica{}, all[:leader]...), all[leader+1:]...)
	fleet.AwaitAny(t, "led", rest...)
	if n := len(leaders(rest)); n != 1 {
		t.Errorf("%d replicas lead after the first was killed", n)
	}
}

// leaders returns the replicas that have led so far.
func leaders(all []*fleet.Replica) (who []*fleet.Replica) {
	for _, r := range all {
		if fleet.Count("led", r) > 0 {
			who = append(who, r)
		}
	}
	return who
}
