package recipes

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// An off clock is one that is late.
type offClock struct {
	clockwork.Clock
	late time.Duration
}

func (c offClock) Now() time.Time                  { return c.Clock.Now().Add(-c.late) }
func (c offClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
func (c offClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// inTenHours lets three replicas, whose clocks are 20 ms apart, run a job every hour that takes 5
// ms, and returns how often it ran.
func inTenHours(
	t *testing.T, schedule func(
		*dlock.Client, func(context.Context) error, ...gocron.SchedulerOption,
	) (gocron.Scheduler, error),
) (n int32) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var ran atomic.Int32
		report := func(context.Context) error {
			time.Sleep(5 * time.Millisecond)
			ran.Add(1)
			return nil
		}
		time.Sleep(time.Minute) // midnight is over
		for i := range 3 {
			clock := offClock{clockwork.NewRealClock(), time.Duration(i) * 20 * time.Millisecond}
			s, err := schedule(replicaOn(t, store), report, gocron.WithClock(clock))
			must(t, err)
			t.Cleanup(func() { s.Shutdown() })
		}
		time.Sleep(10 * time.Hour)
		n = ran.Load()
	})
	return n
}

func TestAHomemadeLockerRunsAJobOnEachReplica(t *testing.T) {
	n := inTenHours(t, func(
		c *dlock.Client, report func(context.Context) error, opts ...gocron.SchedulerOption,
	) (gocron.Scheduler, error) {
		return scheduleWrong(c, func() { report(context.Background()) }, opts...)
	})
	if n != 30 {
		t.Errorf("in ten hours a job of every hour ran %d times on three replicas", n)
	}
}

func TestTheAdaptersLockerRunsAJobOnOneReplica(t *testing.T) {
	if n := inTenHours(t, schedule); n != 10 {
		t.Errorf("in ten hours a job of every hour ran %d times on three replicas", n)
	}
}
