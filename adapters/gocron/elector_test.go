package gocronlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/stores"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// A candidate is a replica with an Elector.
type candidate struct {
	elector *gocronlock.Elector
	resign  context.CancelFunc
	done    chan error
	counts  tally
}

// campaign starts a replica whose job is made of a task, or of f if there is one.
func campaign(
	t *testing.T, client *dlock.Client, job gocron.JobDefinition, fn func(context.Context) error,
) *candidate {
	t.Helper()
	c := &candidate{elector: gocronlock.NewElector(client, "leader"), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	c.resign = cancel
	s := newScheduler(t, gocron.WithDistributedElector(c.elector))
	_, err := s.NewJob(job, c.elector.Task(fn), c.counts.listen())
	must(t, err)
	go func() { c.done <- c.elector.Run(ctx) }()
	t.Cleanup(func() {
		s.Shutdown()
		cancel()
	})
	return c
}

func TestOnlyTheLeaderRunsJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		all := make([]*candidate, 3)
		for i := range all {
			all[i] = campaign(t, stores.NewClient(t, store), gocron.DurationJob(time.Second), quick)
			synctest.Wait() // the first leads
		}
		time.Sleep(10*time.Second + time.Millisecond)
		if a, b, c := all[0].counts.ran.Load(), all[1].counts.ran.Load(),
			all[2].counts.ran.Load(); a != 10 || b != 0 || c != 0 {
			t.Errorf("in 10 seconds the leader ran the job %d times, the others %d and %d times", a,
				b, c)
		}
		all[0].resign()
		if err := <-all[0].done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ends with %v", err)
		}
		if err := all[0].elector.IsLeader(t.Context()); err != gocronlock.ErrNotLeader {
			t.Errorf("who resigned is told: %v", err)
		}
		time.Sleep(10 * time.Second)
		if a, n := all[0].counts.ran.Load(), all[1].counts.ran.Load()+
			all[2].counts.ran.Load(); a != 10 || n != 10 {
			t.Errorf("in the next 10 seconds the old leader ran the job %d times, the new one "+
				"%d times", a-10, n)
		}
	})
}

// An etcd elector of others' was dead for ever after it had lost its lock once.
func TestAnElectorLeadsAgainAfterALoss(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		e := gocronlock.NewElector(connect(), "leader")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		defer func() { cancel(); <-done }()
		leads := func() bool { return e.IsLeader(ctx) == nil }
		testservers.Until(t, "it leads", leads)
		other := connect()
		_, err := other.FencedLocker("leader").ForceUnlock(ctx)
		must(t, err)
		hold, err := other.FencedLocker("leader").Acquire(ctx)
		must(t, err)
		testservers.Until(t, "it has lost that", func() bool { return !leads() })
		must(t, hold.Release(ctx))
		testservers.Until(t, "it leads again", leads)
	}, dlock.WithLease(lease))
}

// An election goes on by itself after a partition that was longer than the lease, and asks nobody
// meanwhile.
func TestAnElectorThatWasCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		wire := newCuttable(store)
		causes := make(chan error, 1)
		a := campaign(t, stores.NewClient(t, wire), gocron.DurationJob(time.Second), func(
			ctx context.Context,
		) error {
			if _, ok := dlock.Token(ctx); !ok {
				t.Error("the context of a task has no token")
			}
			if wire.cut.Load() {
				<-ctx.Done()
				select {
				case causes <- context.Cause(ctx):
				default:
				}
			}
			return nil
		})
		synctest.Wait()
		b := campaign(t, stores.NewClient(t, store), gocron.DurationJob(time.Second), quick)
		leads := func(c *candidate) bool {
			began := time.Now()
			err := c.elector.IsLeader(t.Context())
			if time.Since(began) != 0 {
				t.Error("IsLeader has waited")
			}
			return err == nil
		}
		time.Sleep(1500 * time.Millisecond)
		if !leads(a) || leads(b) {
			t.Fatal("the first doesn't lead")
		}
		wire.cut.Store(true)
		for range 2 * dlock.DefaultLease / time.Second {
			time.Sleep(time.Second)
			if leads(a) && leads(b) {
				t.Fatal("both lead")
			}
		}
		if !leads(b) {
			t.Fatal("nobody leads")
		}
		if cause := <-causes; !errors.Is(cause, dlock.ErrLost) {
			t.Errorf("the context of a task of a leader who was cut off ended with %v", cause)
		}
		wire.cut.Store(false)
		b.resign()
		time.Sleep(dlock.DefaultLease)
		if !leads(a) || leads(b) {
			t.Error("who was cut off leads no more, for ever")
		}
	})
}

func TestAnElectorWithoutItsStore(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	client := stores.NewClient(t, stores.Redis(t, server.Addr), dlock.WithLease(lease))
	c := campaign(t, client, gocron.DurationJob(10*time.Millisecond), quick)
	testservers.Until(t, "it leads", func() bool { return c.counts.ran.Load() > 0 })
	server.Kill()
	testservers.Until(t, "it leads no more", func() bool {
		return c.elector.IsLeader(t.Context()) != nil
	})
	server.Restart()
	before := c.counts.ran.Load()
	testservers.Until(t, "it leads again", func() bool { return c.counts.ran.Load() > before })
	must(t, client.Close())
	if err := <-c.done; !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("the client is closed, and Run returns %v", err)
	}
	if err := c.elector.IsLeader(t.Context()); err != gocronlock.ErrNotLeader {
		t.Errorf("the client is closed, and IsLeader returns %v", err)
	}
}

// A leader that resigns still leads while one of its tasks runs: the next leader's task must not
// run beside it.
func TestATaskEndsBeforeTheNextLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		told, end := make(chan error, 1), make(chan struct{})
		a := campaign(t, stores.NewClient(t, store), gocron.DurationJob(time.Second), func(
			ctx context.Context,
		) error {
			<-ctx.Done()
			told <- context.Cause(ctx)
			<-end
			return nil
		})
		synctest.Wait()
		b := campaign(t, stores.NewClient(t, store), gocron.DurationJob(time.Second), quick)
		time.Sleep(1500 * time.Millisecond)
		a.resign()
		if cause := <-told; !errors.Is(cause, context.Canceled) {
			t.Errorf("the context of a task ended with %v", cause)
		}
		time.Sleep(time.Minute)
		if n := b.counts.ran.Load(); n != 0 {
			t.Errorf("the next leader ran its job %d times while one of the last leader's ran", n)
		}
		close(end)
		time.Sleep(2 * time.Second)
		if b.counts.ran.Load() == 0 {
			t.Error("nobody leads")
		}
	})
}

func TestATaskOfNoLeaderIsNotCalled(t *testing.T) {
	t.Parallel()
	s := newScheduler(t) // without the elector
	e := gocronlock.NewElector(stores.NewClient(t, membackend.New()), "leader")
	var counts tally
	fire(t, s, e.Task(func(context.Context) error {
		t.Error("it was called")
		return nil
	}), &counts)
	if !counts.is(gocronlock.ErrNotLeader) {
		t.Errorf("a task without a leader: %s", counts.text())
	}
}
