package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/stores"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// coarse is a store that counts leases in seconds, as etcd does.
type coarse struct{ backend.Backend }

func (b coarse) Limits() backend.Limits {
	limits := b.Backend.Limits()
	limits.MinLease, limits.LeaseStep = 2*time.Second, time.Second
	return limits
}

// runs lets three replicas, whose clocks are 20 ms apart, run a job that takes no time, ten times,
// and returns how often it ran.
func runs(t *testing.T, period time.Duration, opts ...gocronlock.Option) (n int) {
	synctest.Test(t, func(t *testing.T) {
		store := coarse{membackend.New()}
		start := time.Now().Add(time.Second)
		var counts tally
		for i := range 3 {
			skew := time.Duration(i) * 20 * time.Millisecond
			s := newScheduler(t,
				gocron.WithDistributedLocker(newLocker(t, stores.NewClient(t, store), opts...)))
			_, err := s.NewJob(gocron.DurationJob(period), gocron.NewTask(quick),
				gocron.WithName("report"), counts.listen(),
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

func TestAJobOfEveryFewSecondsRunsEachTime(t *testing.T) {
	for _, period := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second} {
		for _, atLeast := range []time.Duration{gocronlock.DefaultAtLeast, period * 9 / 10} {
			if n := runs(t, period, gocronlock.WithAtLeast(atLeast)); n != 10 {
				t.Errorf("a job of each %v, with a lock for %v at least, ran %d times in 10 "+
					"periods",
					period, atLeast, n)
			}
		}
	}
}

// The at-least time keeps replicas whose clocks differ from running a short job twice.
func TestWithoutAtLeastAQuickJobRunsOnEachReplica(t *testing.T) {
	if n := runs(t, time.Minute, gocronlock.WithAtLeast(0)); n != 30 {
		t.Errorf("a job ran %d times in 10 periods on three replicas", n)
	}
}

func TestARunIsOneReplicas(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		var counts tally
		start := soon()
		for i := range 3 {
			locker := newLocker(t, connect(), gocronlock.WithAtLeast(10*time.Minute))
			s := newScheduler(t, gocron.WithDistributedLocker(locker))
			at := start.Add(time.Duration(i) * 20 * time.Millisecond)
			_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(at)),
				locker.Task("report", quick), gocron.WithName("report"), counts.listen())
			must(t, err)
		}
		testservers.Until(t, "each replica has run the job or skipped it", func() bool {
			return counts.ran.Load()+counts.skipped.Load()+counts.failed.Load() == 3
		})
		if counts.ran.Load() != 1 || counts.failed.Load() != 0 {
			t.Errorf("%d replicas ran the job, for %d it failed", counts.ran.Load(),
				counts.failed.Load())
		}
		if !counts.is(dlock.ErrHeld) || counts.is(dlock.ErrUnavailable) {
			t.Errorf("a run was skipped with %s", counts.text())
		}
	}, dlock.WithLease(lease))
}

// fire runs a job now, and waits until the tally knows what became of it.
func fire(t *testing.T, s gocron.Scheduler, task gocron.Task, counts *tally) {
	t.Helper()
	before := counts.ran.Load() + counts.skipped.Load() + counts.failed.Load()
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), task,
		gocron.WithName("report"), counts.listen())
	must(t, err)
	testservers.Until(t, "the job has run or was skipped", func() bool {
		return counts.ran.Load()+counts.skipped.Load()+counts.failed.Load() > before
	})
}

func TestHeldAndDownAreToldApart(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	var book logbook
	client := stores.NewClient(t, stores.Redis(t, server.Addr))
	locker := gocronlock.NewLocker(client, gocronlock.WithLogger(book.logger()))
	s := newScheduler(t, gocron.WithDistributedLocker(locker))
	var counts tally

	other := stores.NewClient(t, stores.Redis(t, server.Addr)).Locker("gocron:report")
	must(t, other.LockContext(t.Context()))
	fire(t, s, gocron.NewTask(quick), &counts)
	if !counts.is(dlock.ErrHeld) || counts.skipped.Load() != 1 || book.String() != "" {
		t.Errorf("the lock is held, and the run says %s; logged: %s", counts.text(), &book)
	}
	server.Kill()
	fire(t, s, gocron.NewTask(quick), &counts)
	if !counts.is(dlock.ErrUnavailable) || counts.is(dlock.ErrHeld) || counts.skipped.Load() != 2 {
		t.Errorf("the store is down, and the run says %s", counts.text())
	}
	if !book.says("level=WARN") || !book.says("job=report") ||
		strings.Count(book.String(), "\n") != 1 {
		t.Errorf("the store is down, and one run was skipped; logged: %s", &book)
	}
}

func TestAStoreThatHangsDelaysNoRunForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCuttable(membackend.New())
		store.cut.Store(true)
		locker := newLocker(t, stores.NewClient(t, store))
		began := time.Now()
		_, err := locker.Lock(t.Context(), "report")
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("an attempt took %v", took)
		}
		if errors.Is(err, dlock.ErrHeld) || !errors.Is(err, dlock.ErrUnavailable) ||
			!strings.Contains(err.Error(), "has not answered for 5s") ||
			!strings.Contains(err.Error(), `"gocron:report"`) {
			t.Errorf("an attempt that wasn't answered says %v", err)
		}
	})
}

// gocron unlocks with the context of the job, which has ended where the job was removed meanwhile.
func TestTheUnlockWorksForAJobThatIsRemoved(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		client := connect()
		s := newScheduler(t,
			gocron.WithDistributedLocker(newLocker(t, client, gocronlock.WithAtLeast(0))))
		begun, end := make(chan context.Context), make(chan struct{})
		job, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
			gocron.NewTask(func(ctx context.Context) {
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
	}, dlock.WithLease(lease))
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
				locker := newLocker(t, stores.NewClient(t, store))
				s := newScheduler(t, options(locker)...)
				var counts tally
				var cause error
				_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
					locker.Task("report", func(ctx context.Context) error {
						<-ctx.Done()
						cause = context.Cause(ctx)
						return nil
					}), gocron.WithName("report"), counts.listen())
				must(t, err)
				synctest.Wait()
				_, err = stores.NewClient(t, store).Locker("gocron:report").ForceUnlock(t.Context())
				must(t, err)
				time.Sleep(dlock.DefaultLease)
				synctest.Wait()
				if !errors.Is(cause, dlock.ErrLost) {
					t.Errorf("the lock was lost, and the cause of the task's context is %v", cause)
				}
				if counts.failed.Load() != 1 || !counts.is(dlock.ErrLost) {
					t.Errorf("the lock was lost, and the job has failed %d times",
						counts.failed.Load())
				}
			})
		})
	}
}

// A task that locks by itself skips a run that is another's, and fails where the store does.
func TestATaskWithoutTheSchedulersLocker(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	locker := newLocker(t, stores.NewClient(t, stores.Redis(t, server.Addr)),
		gocronlock.WithAtLeast(0))
	s := newScheduler(t)
	other := stores.NewClient(t, stores.Redis(t, server.Addr)).Locker("gocron:report")
	called := 0
	task := locker.Task("report", func(context.Context) error { called++; return nil })
	var counts tally

	fire(t, s, task, &counts)
	must(t, other.LockContext(t.Context()))
	fire(t, s, task, &counts)
	if called != 1 || counts.ran.Load() != 2 {
		t.Errorf("a task was called %d times, %d went well: once it was another's turn", called,
			counts.ran.Load())
	}
	server.Kill()
	fire(t, s, task, &counts)
	if called != 1 || counts.failed.Load() != 1 || !counts.is(dlock.ErrUnavailable) {
		t.Errorf("the store is down: called %d times, %d failed", called, counts.failed.Load())
	}
}

// Without names gocron would call all jobs that are made of tasks the same, and they would exclude
// each other.
func TestATaskWithoutItsJobsNameIsRefused(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, stores.NewClient(t, membackend.New()))
	s := newScheduler(t, gocron.WithDistributedLocker(locker))
	var counts tally
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		locker.Task("report", quick), counts.listen())
	must(t, err)
	testservers.Until(t, "the job is skipped", func() bool { return counts.skipped.Load() == 1 })
	if !strings.Contains(counts.text(), "gocron.WithName") {
		t.Errorf("a job without a name is skipped with: %s", counts.text())
	}
}

func TestAnAtLeastTimeLongerThanThePeriodIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logbook
		locker := gocronlock.NewLocker(stores.NewClient(t, membackend.New()),
			gocronlock.WithAtLeast(3*time.Second), gocronlock.WithLogger(book.logger()))
		s := newScheduler(t, gocron.WithDistributedLocker(locker))
		var counts tally
		_, err := s.NewJob(gocron.DurationJob(2*time.Second), gocron.NewTask(quick),
			gocron.WithName("report"), counts.listen())
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

// Functions that are made in a loop have one name, and so have the jobs that are made of them.
func TestTwoJobsOfOneNameAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logbook
		locker := gocronlock.NewLocker(stores.NewClient(t, membackend.New()),
			gocronlock.WithLogger(book.logger()))
		s := newScheduler(t, gocron.WithDistributedLocker(locker))
		var counts tally
		newJob := func(after time.Duration) gocron.Job {
			start := gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Add(after)))
			job, err := s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(quick), start,
				counts.listen())
			must(t, err)
			return job
		}
		first := newJob(time.Second)
		newJob(1100 * time.Millisecond) // when it is known here whose lock it is
		time.Sleep(30 * time.Second)
		if counts.ran.Load() != 1 || !book.says("another job of this program has the same name") ||
			strings.Count(book.String(), "\n") != 1 {
			t.Errorf("of two jobs %d ran; logged: %s", counts.ran.Load(), &book)
		}
		must(t, s.RemoveJob(first.ID()))
		time.Sleep(time.Minute)
		if counts.ran.Load() != 2 || strings.Count(book.String(), "\n") != 1 {
			t.Errorf("of one job that is left %d runs; logged: %s", counts.ran.Load()-1, &book)
		}
	})
}

// A replica that has a job wait in its queue runs it late, when another's run is long over.
func TestARunThatWaitsInAQueueIsSkippedWithinTheAtLeastTime(t *testing.T) {
	for atLeast, want := range map[time.Duration]int32{
		gocronlock.DefaultAtLeast: 2,
		50 * time.Second:          1,
	} {
		synctest.Test(t, func(t *testing.T) {
			store := membackend.New()
			start := gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Add(time.Second)))
			var counts tally
			for i := range 2 {
				s := newScheduler(t,
					gocron.WithDistributedLocker(
						newLocker(t, stores.NewClient(t, store), gocronlock.WithAtLeast(atLeast))),
					gocron.WithLimitConcurrentJobs(1, gocron.LimitModeWait))
				if i == 1 {
					_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
						gocron.NewTask(func() {
							time.Sleep(20 * time.Second)
						}), gocron.WithName("other"))
					must(t, err)
				}
				_, err := s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(quick),
					gocron.WithName("report"), start, counts.listen())
				must(t, err)
			}
			time.Sleep(45 * time.Second)
			if n := counts.ran.Load(); n != want {
				t.Errorf("with an at-least time of %v a job ran %d times in one period", atLeast, n)
			}
		})
	}
}

// A run that goes on when the next is due: no other begins, in whatever way gocron would have it.
func TestALongRunIsNotOverlapped(t *testing.T) {
	for name, option := range map[string]gocron.JobOption{
		"no mode":    gocron.WithTags(),
		"reschedule": gocron.WithSingletonMode(gocron.LimitModeReschedule),
		"wait":       gocron.WithSingletonMode(gocron.LimitModeWait),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				var running, ran atomic.Int32
				var all []gocron.Scheduler
				for range 2 {
					locker := newLocker(t, stores.NewClient(t, store))
					s := newScheduler(t, gocron.WithDistributedLocker(locker))
					_, err := s.NewJob(gocron.DurationJob(time.Second),
						locker.Task("report", func(context.Context) error {
							if n := running.Add(1); n != 1 {
								t.Errorf("%d runs at once", n)
							}
							time.Sleep(2500 * time.Millisecond)
							running.Add(-1)
							ran.Add(1)
							return nil
						}), gocron.WithName("report"), option)
					must(t, err)
					all = append(all, s)
				}
				time.Sleep(time.Minute)
				for _, s := range all {
					must(t, s.RemoveJob(s.Jobs()[0].ID()))
				}
				// Shutdown of gocron spins while a job runs, and time stands still here meanwhile
				time.Sleep(3 * time.Second)
				if n := ran.Load(); n < 15 || n > 24 {
					t.Errorf("a job of 2.5 seconds ran %d times in a minute", n)
				}
			})
		})
	}
}

func TestAPanicGivesTheLockBack(t *testing.T) {
	t.Parallel()
	client := stores.NewClient(t, membackend.New())
	locker := newLocker(t, client, gocronlock.WithAtLeast(0))
	for name, options := range map[string][]gocron.SchedulerOption{
		"locked by gocron":   {gocron.WithDistributedLocker(locker)},
		"locked by the task": nil,
	} {
		s := newScheduler(t, options...)
		panicked := make(chan any)
		_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
			locker.Task("report", func(context.Context) error { panic("no paper") }),
			gocron.WithName("report"),
			gocron.WithEventListeners(gocron.AfterJobRunsWithPanic(func(
				_ uuid.UUID, _ string, what any,
			) {
				panicked <- what
			})))
		must(t, err)
		<-panicked
		testservers.Until(t, "the lock is free after a panic, "+name, func() bool {
			held, err := client.Locker("gocron:report").IsLocked(t.Context())
			must(t, err)
			return !held
		})
	}
}

// At Shutdown jobs are told by their context, and the lock is theirs until they have returned,
// however long gocron waits for that.
func TestAShutdownTellsATaskAndUnlocksAfterIt(t *testing.T) {
	t.Parallel()
	client := stores.NewClient(t, membackend.New())
	locker := newLocker(t, client, gocronlock.WithAtLeast(0))
	s := newScheduler(t, gocron.WithDistributedLocker(locker),
		gocron.WithStopTimeout(time.Millisecond))
	begun, end := make(chan context.Context), make(chan struct{})
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		locker.Task("report", func(ctx context.Context) error {
			begun <- ctx
			<-end
			return nil
		}), gocron.WithName("report"))
	must(t, err)
	ctx := <-begun
	if err := s.Shutdown(); !errors.Is(err, gocron.ErrStopJobsTimedOut) {
		t.Errorf("Shutdown says %v", err)
	}
	<-ctx.Done()
	held := func() bool {
		held, err := client.Locker("gocron:report").IsLocked(t.Context())
		must(t, err)
		return held
	}
	if !held() {
		t.Error("the lock is free while the task runs")
	}
	close(end)
	testservers.Until(t, "the lock is free", func() bool { return !held() })
}

// Each of a hundred letters is a job of its own, and nothing of it is kept.
func TestJobsThatRunOnceAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, stores.NewClient(t, membackend.New()))
		for i := range 100 {
			lock, err := locker.Lock(t.Context(), fmt.Sprint("letter ", i))
			must(t, err)
			must(t, lock.Unlock(t.Context()))
		}
		if n := gocronlock.Known(locker); n != 100 {
			t.Errorf("of 100 jobs, whose at-least time isn't over, %d are known", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := gocronlock.Known(locker); n != 0 {
			t.Errorf("after the at-least time %d jobs are known", n)
		}
	})
}

func TestWhatCannotBe(t *testing.T) {
	client := stores.NewClient(t, membackend.New())
	for name, make := range map[string]func(){
		"a Locker without a client":   func() { gocronlock.NewLocker(nil) },
		"a Locker with an option nil": func() { gocronlock.NewLocker(client, nil) },
		"a Locker with a logger nil": func() {
			gocronlock.NewLocker(client, gocronlock.WithLogger(nil))
		},
		"a Locker with a negative time": func() {
			gocronlock.NewLocker(client, gocronlock.WithAtLeast(-1))
		},
		"an Elector without a client":        func() { gocronlock.NewElector(nil, "leader") },
		"an Elector with a name of no bytes": func() { gocronlock.NewElector(client, "") },
	} {
		func() {
			defer func() {
				if said, ok := recover().(string); !ok ||
					!strings.HasPrefix(said, "gocronlock: New") {
					t.Errorf("%s was made, or: %v", name, said)
				}
			}()
			make()
		}()
	}
}
