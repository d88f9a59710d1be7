package gocronlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// runs lets three replicas, whose clocks are 20 ms apart, run a job that takes no time, ten times, and returns how often it ran.
func runs(t *testing.T, period time.Duration, opts ...gocronlock.Option) (n int) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		start := time.Now().Add(time.Second)
		var counts tally
		for i := range 3 {
			skew := time.Duration(i) * 20 * time.Millisecond
			s := newScheduler(t, gocron.WithDistributedLocker(newLocker(t, newClient(t, store), opts...)))
			_, err := s.NewJob(gocron.DurationJob(period), gocron.NewTask(quick), gocron.WithName("report"), counts.listen(),
				gocron.WithStartAt(gocron.WithStartDateTime(start.Add(skew))))
			must(t, err)
		}
		time.Sleep(time.Second + 9*period + period/2)
		n = int(counts.ran.Load())
	})
	return n
}

func TestAJobThatIsQuickerThanTheSkewRunsOnce(t *testing.T) {
	if n := runs(t, time.Minute); n != 10 {
		t.Errorf("a job ran %d times in 10 periods", n)
	}
}

func TestAJobOfEverySecondRunsEverySecond(t *testing.T) {
	if n := runs(t, time.Second); n != 10 {
		t.Errorf("a job ran %d times in 10 seconds", n)
	}
}

// What the at-least time is for.
func TestWithoutAtLeastAQuickJobRunsOnEachReplica(t *testing.T) {
	if n := runs(t, time.Minute, gocronlock.WithAtLeast(0)); n != 30 {
		t.Errorf("a job ran %d times in 10 periods on three replicas", n)
	}
}

func TestARunIsOneReplicas(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, connect func() *dlock.Client) {
		var counts tally
		start := soon()
		for i := range 3 {
			locker := newLocker(t, connect(), gocronlock.WithAtLeast(10*time.Minute))
			s := newScheduler(t, gocron.WithDistributedLocker(locker))
			at := start.Add(time.Duration(i) * 20 * time.Millisecond)
			_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(at)), locker.Task("report", quick), gocron.WithName("report"), counts.listen())
			must(t, err)
		}
		testservers.Until(t, "each replica has run the job or skipped it", func() bool {
			return counts.ran.Load()+counts.skipped.Load()+counts.failed.Load() == 3
		})
		if counts.ran.Load() != 1 || counts.failed.Load() != 0 {
			t.Errorf("%d replicas ran the job, for %d it failed", counts.ran.Load(), counts.failed.Load())
		}
		if !counts.is(dlock.ErrHeld) || counts.is(dlock.ErrUnavailable) {
			t.Errorf("a run was skipped with %s", counts.text())
		}
	})
}

// fire runs a job now, and waits until the tally knows what became of it.
func fire(t *testing.T, s gocron.Scheduler, task gocron.Task, counts *tally) {
	t.Helper()
	before := counts.ran.Load() + counts.skipped.Load() + counts.failed.Load()
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), task, gocron.WithName("report"), counts.listen())
	must(t, err)
	testservers.Until(t, "the job has run or was skipped", func() bool {
		return counts.ran.Load()+counts.skipped.Load()+counts.failed.Load() > before
	})
}

func TestHeldAndDownAreToldApart(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	var book logbook
	client := newClient(t, redisOn(t, server.Addr))
	locker := gocronlock.NewLocker(client, gocronlock.WithLogger(book.logger()))
	s := newScheduler(t, gocron.WithDistributedLocker(locker))
	var counts tally

	must(t, newClient(t, redisOn(t, server.Addr)).Locker("gocron:report").LockContext(t.Context()))
	fire(t, s, gocron.NewTask(quick), &counts)
	if !counts.is(dlock.ErrHeld) || counts.skipped.Load() != 1 || book.String() != "" {
		t.Errorf("the lock is held, and the run says %s; logged: %s", counts.text(), &book)
	}
	server.Kill()
	fire(t, s, gocron.NewTask(quick), &counts)
	if !counts.is(dlock.ErrUnavailable) || counts.is(dlock.ErrHeld) || counts.skipped.Load() != 2 {
		t.Errorf("the store is down, and the run says %s", counts.text())
	}
	if !book.says("level=WARN") || !book.says("job=report") {
		t.Errorf("the store is down; logged: %s", &book)
	}
}

func TestAStoreThatHangsDelaysNoRunForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, newClient(t, hanging{membackend.New()}))
		began := time.Now()
		_, err := locker.Lock(t.Context(), "report")
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("an attempt took %v", took)
		}
		if errors.Is(err, dlock.ErrHeld) || err == nil || !strings.Contains(err.Error(), "has not answered for 5s") {
			t.Errorf("an attempt that wasn't answered says %v", err)
		}
	})
}

// gocron unlocks with the context of the job, which has ended where the job was removed meanwhile.
func TestTheUnlockWorksForAJobThatIsRemoved(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, connect func() *dlock.Client) {
		client := connect()
		s := newScheduler(t, gocron.WithDistributedLocker(newLocker(t, client, gocronlock.WithAtLeast(0))))
		begun, end := make(chan context.Context), make(chan struct{})
		job, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func(ctx context.Context) {
			begun <- ctx
			<-end
		}), gocron.WithName("report"))
		must(t, err)
		ctx := <-begun
		must(t, s.RemoveJob(job.ID()))
		<-ctx.Done()
		close(end)
		testservers.Until(t, "the lock is free", func() bool {
			held, err := client.Locker("gocron:report").IsLocked(t.Context())
			must(t, err)
			return !held
		})
	})
}

// With the scheduler's locker, and by itself.
func TestTheContextOfATaskEndsWithItsLock(t *testing.T) {
	for name, options := range map[string]func(*gocronlock.Locker) []gocron.SchedulerOption{
		"locked by gocron": func(l *gocronlock.Locker) []gocron.SchedulerOption {
			return []gocron.SchedulerOption{gocron.WithDistributedLocker(l)}
		},
		"locked by the task": func(*gocronlock.Locker) []gocron.SchedulerOption { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				locker := newLocker(t, newClient(t, store))
				s := newScheduler(t, options(locker)...)
				var counts tally
				var cause error
				_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), locker.Task("report", func(ctx context.Context) error {
					<-ctx.Done()
					cause = context.Cause(ctx)
					return nil
				}), gocron.WithName("report"), counts.listen())
				must(t, err)
				synctest.Wait()
				_, err = newClient(t, store).Locker("gocron:report").ForceUnlock(t.Context())
				must(t, err)
				time.Sleep(dlock.DefaultLease)
				synctest.Wait()
				if !errors.Is(cause, dlock.ErrLost) {
					t.Errorf("the lock was lost, and the cause of the task's context is %v", cause)
				}
				if counts.failed.Load() != 1 || !counts.is(dlock.ErrLost) {
					t.Errorf("the lock was lost, and the job has failed %d times", counts.failed.Load())
				}
			})
		})
	}
}

// A task that locks by itself skips a run that is another's, and fails where the store does.
func TestATaskWithoutTheSchedulersLocker(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	locker := newLocker(t, newClient(t, redisOn(t, server.Addr)), gocronlock.WithAtLeast(0))
	s := newScheduler(t)
	other := newClient(t, redisOn(t, server.Addr)).Locker("gocron:report")
	called := 0
	task := locker.Task("report", func(context.Context) error { called++; return nil })
	var counts tally

	fire(t, s, task, &counts)
	must(t, other.LockContext(t.Context()))
	fire(t, s, task, &counts)
	if called != 1 || counts.ran.Load() != 2 {
		t.Errorf("a task was called %d times, %d went well: once it was another's turn", called, counts.ran.Load())
	}
	server.Kill()
	fire(t, s, task, &counts)
	if called != 1 || counts.failed.Load() != 1 || !counts.is(dlock.ErrUnavailable) {
		t.Errorf("the store is down: called %d times, %d failed", called, counts.failed.Load())
	}
}

// Without names gocron would call all jobs that are made of tasks the same, and they would exclude each other.
func TestATaskWithoutItsJobsNameIsRefused(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, newClient(t, membackend.New()))
	s := newScheduler(t, gocron.WithDistributedLocker(locker))
	var counts tally
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), locker.Task("report", quick), counts.listen())
	must(t, err)
	testservers.Until(t, "the job is skipped", func() bool { return counts.skipped.Load() == 1 })
	if !strings.Contains(counts.text(), "gocron.WithName") {
		t.Errorf("a job without a name is skipped with: %s", counts.text())
	}
}

func TestAnAtLeastTimeLongerThanThePeriodIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logbook
		locker := gocronlock.NewLocker(newClient(t, membackend.New()), gocronlock.WithAtLeast(3*time.Second), gocronlock.WithLogger(book.logger()))
		s := newScheduler(t, gocron.WithDistributedLocker(locker))
		var counts tally
		_, err := s.NewJob(gocron.DurationJob(2*time.Second), gocron.NewTask(quick), gocron.WithName("report"), counts.listen())
		must(t, err)
		time.Sleep(3 * time.Second)
		if book.String() != "" {
			t.Errorf("logged after the first run: %s", &book)
		}
		time.Sleep(2 * time.Second)
		if counts.skipped.Load() != 1 || !book.says("longer than its period") {
			t.Errorf("%d runs were skipped; logged: %s", counts.skipped.Load(), &book)
		}
	})
}

func TestWithoutAClient(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a Locker without a client was made")
		}
	}()
	gocronlock.NewLocker(nil)
}
