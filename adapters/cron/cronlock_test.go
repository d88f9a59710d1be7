package cronlock_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	cronlock "github.com/seed951563bd/distsync/adapters/cron"
	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/overview"
	"github.com/seed951563bd/distsync/internal/test/stores"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestMain(m *testing.M) { fleet.Main(m, replica) }

func TestTheProgramOfTheOverview(t *testing.T) { overview.Compiles(t) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A logbook is what cron's logger was told.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logbook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// all logs skipped runs, too.
func (b *logbook) all() cron.Logger { return cron.VerbosePrintfLogger(log.New(b, "", 0)) }

// errors logs errors only.
func (b *logbook) errors() cron.Logger { return cron.PrintfLogger(log.New(b, "", 0)) }

func (b *logbook) says(what string) bool { return strings.Contains(b.String(), what) }

// skewed is a schedule of a replica whose clock is late.
type skewed struct {
	cron.Schedule
	by time.Duration
}

func (s skewed) Next(t time.Time) time.Time { return s.Schedule.Next(t.Add(-s.by)).Add(s.by) }

// coarse is a store that counts leases in seconds, as etcd does.
type coarse struct{ backend.Backend }

func (b coarse) Limits() backend.Limits {
	limits := b.Backend.Limits()
	limits.MinLease, limits.LeaseStep = 2*time.Second, time.Second
	return limits
}

// runs lets three replicas, whose clocks are 20 ms apart, run a job that takes no time, ten times,
// and returns how often it ran.
func runs(t *testing.T, spec string, period time.Duration, opts ...cronlock.Option) (n int32) {
	schedule, err := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom |
		cron.Month | cron.Dow).Parse(spec)
	must(t, err)
	synctest.Test(t, func(t *testing.T) {
		store := coarse{membackend.New()}
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).
			Add(time.Minute - 500*time.Millisecond)))
		var count atomic.Int32
		for i := range 3 {
			c := cron.New()
			wrap := cronlock.Wrapper(stores.NewClient(t, store), "report",
				append([]cronlock.Option{cronlock.WithLogger(cron.DiscardLogger)}, opts...)...)
			c.Schedule(skewed{schedule, time.Duration(i) * 20 * time.Millisecond},
				wrap(cron.FuncJob(func() { count.Add(1) })))
			c.Start()
			defer func() { <-c.Stop().Done() }()
		}
		time.Sleep(9*period + 750*time.Millisecond)
		n = count.Load()
	})
	return n
}

func TestAJobThatIsQuickerThanTheSkewRunsOnce(t *testing.T) {
	if n := runs(t, "* * * * *", time.Minute); n != 10 {
		t.Errorf("a job ran %d times in 10 minutes", n)
	}
}

func TestAJobOfEveryFewSecondsRunsEachTime(t *testing.T) {
	for _, seconds := range []int{1, 2, 5} {
		spec, period := fmt.Sprintf("*/%d * * * * *", seconds), time.Duration(seconds)*time.Second
		for _, atLeast := range []time.Duration{cronlock.DefaultAtLeast, period * 9 / 10} {
			if n := runs(t, spec, period, cronlock.WithAtLeast(atLeast)); n != 10 {
				t.Errorf("a job of each %v, with a lock for %v at least, ran %d times in 10 "+
					"periods",
					period, atLeast, n)
			}
		}
	}
}

// The at-least time keeps replicas whose clocks differ from running a short job twice.
func TestWithoutAtLeastAQuickJobRunsOnEachReplica(t *testing.T) {
	if n := runs(t, "* * * * *", time.Minute, cronlock.WithAtLeast(0)); n != 30 {
		t.Errorf("a job ran %d times in 10 minutes on three replicas", n)
	}
}

func TestARunIsOneReplicas(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		var book logbook
		var count atomic.Int32
		jobs := make([]cron.Job, 3)
		for i := range jobs {
			jobs[i] = cronlock.Wrapper(connect(), "report", cronlock.WithAtLeast(10*time.Minute),
				cronlock.WithLogger(book.all()))(cron.FuncJob(func() { count.Add(1) }))
		}
		var all sync.WaitGroup
		for _, job := range jobs {
			all.Go(job.Run)
		}
		all.Wait()
		if n, skipped := count.Load(), strings.Count(book.String(), "skip, job=report"); n != 1 ||
			skipped != 2 {
			t.Errorf("a job ran %d times, and was skipped %d times; logged: %s", n, skipped, &book)
		}
	})
}

func TestHeldAndDownAreToldApart(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	var book logbook
	ran := false
	job := cronlock.Wrapper(stores.NewClient(t, stores.Redis(t, server.Addr)), "report",
		cronlock.WithLogger(book.errors()))(cron.FuncJob(func() { ran = true }))

	other := stores.NewClient(t, stores.Redis(t, server.Addr)).Locker("cron:report")
	must(t, other.LockContext(t.Context()))
	if job.Run(); ran || book.String() != "" {
		t.Errorf("the lock is held; the job has run: %v; logged: %s", ran, &book)
	}
	server.Kill()
	if job.Run(); ran || !book.says("store unavailable") || !book.says("job=report") ||
		strings.Count(book.String(), "\n") != 1 {
		t.Errorf("the store is down; the job has run: %v; logged: %s", ran, &book)
	}
}

// A hanging store doesn't answer a client that wants a lock.
type hanging struct{ backend.Backend }

func (h hanging) Open() backend.Session { return hangingSession{h.Backend.Open()} }

type hangingSession struct{ backend.Session }

func (hangingSession) Acquire(
	ctx context.Context, _ backend.AcquireRequest,
) (backend.AcquireResult, error) {
	<-ctx.Done()
	return backend.AcquireResult{}, ctx.Err()
}

func TestAStoreThatHangsDelaysNoRunForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logbook
		job := cronlock.Wrapper(stores.NewClient(t, hanging{membackend.New()}), "report",
			cronlock.WithLogger(book.errors()))(cron.FuncJob(func() { t.Error("the job has run") }))
		began := time.Now()
		job.Run()
		if took := time.Since(began); took != 5*time.Second ||
			!book.says("has not answered for 5s") || !book.says("store unavailable") {
			t.Errorf("an attempt took %v; logged: %s", took, &book)
		}
	})
}

func TestTheContextOfAFuncEndsWithItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var book logbook
		var cause error
		job := cronlock.Wrapper(stores.NewClient(t, store), "report",
			cronlock.WithLogger(book.errors()))(cronlock.Func(func(ctx context.Context) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return errors.New("half done")
		}))
		done := make(chan struct{})
		go func() { job.Run(); close(done) }()
		synctest.Wait()
		_, err := stores.NewClient(t, store).Locker("cron:report").ForceUnlock(t.Context())
		must(t, err)
		<-done
		if !errors.Is(cause, dlock.ErrLost) {
			t.Errorf("the lock was lost, and the cause of the context is %v", cause)
		}
		if !book.says("half done") || !book.says("was lost while the job ran") {
			t.Errorf("logged: %s", &book)
		}
	})
}

func TestAJobThatPanicsGivesItsLockBack(t *testing.T) {
	t.Parallel()
	client := stores.NewClient(t, membackend.New())
	var book logbook
	lock, recover := cronlock.Wrapper(client, "report", cronlock.WithAtLeast(0)),
		cron.Recover(book.errors())
	for i, chain := range []cron.Chain{cron.NewChain(recover, lock), cron.NewChain(lock, recover)} {
		chain.Then(cron.FuncJob(func() { panic("no paper") })).Run()
		held, err := client.Locker("cron:report").IsLocked(t.Context())
		must(t, err)
		if held || strings.Count(book.String(), "error=no paper") != i+1 {
			t.Errorf("after a panic the lock is held: %v; logged: %s", held, &book)
		}
	}
}

// Two replicas have runs of a job begin while others go on, with what cron has against that, on
// either side. There is nothing left to do for it.
func TestRunsDoNotOverlap(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]cron.JobWrapper{
		"skip":  cron.SkipIfStillRunning(cron.DiscardLogger),
		"delay": cron.DelayIfStillRunning(cron.DiscardLogger),
	} {
		for _, outside := range []bool{true, false} {
			store := membackend.New()
			var running, ran atomic.Int32
			var all sync.WaitGroup
			for range 2 {
				chain := []cron.JobWrapper{
					mode, cronlock.Wrapper(stores.NewClient(t, store), "report",
						cronlock.WithAtLeast(0),
						cronlock.WithLogger(cron.DiscardLogger)),
				}
				if !outside {
					chain[0], chain[1] = chain[1], chain[0]
				}
				job := cron.NewChain(chain...).Then(cron.FuncJob(func() {
					if n := running.Add(1); n != 1 {
						t.Errorf("%s, outside %v: %d runs at once", name, outside, n)
					}
					time.Sleep(time.Millisecond)
					running.Add(-1)
					ran.Add(1)
				}))
				for range 5 {
					all.Go(job.Run)
				}
			}
			all.Wait()
			if ran.Load() == 0 {
				t.Errorf("%s, outside %v: no run", name, outside)
			}
		}
	}
}

func TestAnAtLeastTimeLongerThanThePeriodIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var book, others logbook
		ran := 0
		job := cronlock.Wrapper(stores.NewClient(t, store), "report", cronlock.WithAtLeast(3*time.Second),
			cronlock.WithLogger(book.errors()))(cron.FuncJob(func() { ran++ }))
		other := cronlock.Wrapper(stores.NewClient(t, store), "report",
			cronlock.WithLogger(others.errors()))(cron.FuncJob(func() { ran++ }))
		for range 2 {
			job.Run()
			other.Run() // as its period demands
			time.Sleep(2 * time.Second)
		}
		if ran != 1 || !book.says("longer than its period") ||
			strings.Count(book.String(), "\n") != 1 || others.String() != "" {
			t.Errorf("in two periods a job ran %d times; logged: %s and, on another replica: %s",
				ran, &book, &others)
		}
		time.Sleep(time.Second)
		if job.Run(); ran != 2 {
			t.Errorf("after its at-least time a job ran %d times", ran-1)
		}
	})
}

func TestWhatCannotBe(t *testing.T) {
	client := stores.NewClient(t, membackend.New())
	for name, make := range map[string]func(){
		"without a client":   func() { cronlock.Wrapper(nil, "report") },
		"without a name":     func() { cronlock.Wrapper(client, "") },
		"with an option nil": func() { cronlock.Wrapper(client, "report", nil) },
		"with a logger nil": func() {
			cronlock.Wrapper(client, "report", cronlock.WithLogger(nil))
		},
		"with a negative time": func() {
			cronlock.Wrapper(client, "report", cronlock.WithAtLeast(-1))
		},
	} {
		func() {
			defer func() {
				if said, ok := recover().(string); !ok ||
					!strings.HasPrefix(said, "cronlock: Wrapper: ") {
					t.Errorf("a wrapper was made %s, or: %v", name, said)
				}
			}()
			make()
		}()
	}
}

// replica is a process with a scheduler whose jobs run by order: "quick NAME", or "hang NAME",
// which doesn't end. It says "begun NAME", "ran NAME" and "skipped NAME".
func replica(addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := dlock.New(redisbackend.New(rdb), dlock.WithLease(2*time.Second),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	c := cron.New()
	c.Start()
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		verb, name, _ := strings.Cut(orders.Text(), " ")
		atLeast := 10 * time.Minute
		if verb == "hang" {
			// Only the run keeps others out. A lock that is to be kept for long would still be kept
			// after its process died.
			atLeast = 0
		}
		wrap := cronlock.Wrapper(client, name, cronlock.WithAtLeast(atLeast),
			cronlock.WithLogger(skips{name}))
		c.Schedule(&once{}, wrap(cron.FuncJob(func() {
			fmt.Println("begun", name)
			if verb == "hang" {
				select {}
			}
			fmt.Println("ran", name)
		})))
	}
	return nil
}

// once is a schedule of one run, soon.
type once struct{ over bool }

func (s *once) Next(now time.Time) time.Time {
	if s.over {
		return time.Time{}
	}
	s.over = true
	return now.Add(time.Millisecond)
}

// skips says which runs were skipped.
type skips struct{ name string }

func (s skips) Info(string, ...any) { fmt.Println("skipped", s.name) }

func (s skips) Error(err error, msg string, _ ...any) { fmt.Fprintln(os.Stderr, s.name, msg, err) }

// fire has a replica run a job, and waits for what becomes of it.
func fire(t *testing.T, r *fleet.Replica, name string) {
	t.Helper()
	seen := func() int { return fleet.Count("ran "+name, r) + fleet.Count("skipped "+name, r) }
	before := seen()
	r.Order("quick", name)
	testservers.Until(t, "the job has run or was skipped", func() bool { return seen() > before })
}

func TestAJobRunsOnceInThreeProcessesOfWhichOneIsKilled(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	all := []*fleet.Replica{
		fleet.Start(t, server.Addr), fleet.Start(t, server.Addr), fleet.Start(t, server.Addr),
	}
	for _, r := range all {
		r.Order("quick first")
	}
	testservers.Until(t, "each has run the job or skipped it", func() bool {
		return fleet.Count("ran first", all...)+fleet.Count("skipped first", all...) == 3
	})
	if n := fleet.Count("ran first", all...); n != 1 {
		t.Errorf("a job ran %d times", n)
	}

	dying, others := all[0], all[1:]
	dying.Order("hang report")
	dying.Await("begun report")
	for _, r := range others {
		fire(t, r, "report")
	}
	if n := fleet.Count("begun report", all...); n != 1 {
		t.Errorf("while a job runs %d more replicas run it", n-1)
	}
	dying.Kill()
	for i := 0; fleet.Count("ran report", others...) == 0 && i < 10000; i++ {
		fire(t, others[i%2], "report") // as each period does
	}
	for _, r := range others {
		fire(t, r, "report")
	}
	if n := fleet.Count("ran report", all...); n != 1 {
		t.Errorf("the job of a process that was killed ran %d times", n)
	}
}
