package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	processes  = 8
	goroutines = 8
	increments = 25 // by each goroutine

	workerAddr   = "DISTSYNC_TEST_WORKER" // set in the environment of a worker process
	workerNumber = "DISTSYNC_TEST_NUMBER" // among them
	counterKey   = "counter"
)

// TestProcessesLoseNoIncrement lets processes add to a counter that nothing guards but the lock, in
// steps that would lose additions if two were ever inside.
func TestProcessesLoseNoIncrement(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	counted := runWorkers(t, server, "TestWorkerProcess")
	rdb := connect(t, server.Addr)
	total := wiretest.Must[int64](t)(rdb.Get(t.Context(), counterKey).Int64())
	if total != counted || total < processes*goroutines*increments {
		t.Errorf("the counter is %d after %d increments", total, counted)
	}
	if n := wiretest.Must[int64](t)(rdb.Exists(t.Context(), "the lock").Result()); n != 0 {
		testservers.Until(t, "what was cancelled is taken back", func() bool {
			return rdb.Exists(context.Background(), "the lock").Val() == 0
		})
	}
}

// runWorkers runs processes, each of which is a test of this package, and returns how often they
// have incremented the counter.
func runWorkers(t *testing.T, server *testservers.Server, test string) int64 {
	var (
		all     sync.WaitGroup
		counted atomic.Int64
	)
	for i := range processes {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
			cmd.Env = append(os.Environ(), workerAddr+"="+server.Addr,
				workerNumber+"="+strconv.Itoa(i))
			out, err := cmd.CombinedOutput()
			_, rest, found := strings.Cut(string(out), "increments: ")
			n, _, _ := strings.Cut(rest, "\n")
			if err != nil || !found {
				t.Errorf("a worker: %v\n%s", err, out)
				return
			}
			i, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Error(err)
			}
			counted.Add(i)
		})
	}
	all.Wait()
	return counted.Load()
}

// TestWorkerProcess is one of the processes of TestProcessesLoseNoIncrement. By itself it does
// nothing.
func TestWorkerProcess(t *testing.T) {
	addr := os.Getenv(workerAddr)
	if addr == "" {
		return
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client := dlock.New(redisbackend.New(rdb))
	defer client.Close()
	w := &worker{t: t, rdb: rdb, client: client, shared: client.Locker("the lock")}
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for done := 0; done < increments; {
				if w.turn() {
					done++
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("increments: %d\n", w.count.Load())
}

type worker struct {
	t      *testing.T
	rdb    *redis.Client
	client *dlock.Client
	shared *dlock.Locker
	count  atomic.Int64
	inside atomic.Int32
}

// turn takes the lock in one of the ways there are, and says whether it got in. Some turns are
// cancelled at a random moment.
func (w *worker) turn() bool {
	ctx := context.Background()
	if rand.IntN(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
	}
	l := w.shared
	switch rand.IntN(4) {
	case 0:
		l = w.client.Locker(l.Name())
	case 1:
		l = l.For(dlock.NewOwner())
	case 2:
		return w.check(l.Do(ctx, func(context.Context) error {
			w.increment()
			return nil
		}))
	}
	if !w.check(l.LockContext(ctx)) {
		return false
	}
	w.increment()
	if err := l.UnlockContext(context.Background()); err != nil {
		w.t.Errorf("unlock: %v", err)
	}
	return true
}

// check says whether a turn got in, and fails the test if an error is not the turn's own end.
func (w *worker) check(err error) bool {
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		w.t.Error(err)
	}
	return err == nil
}

// increment adds one in two steps.
func (w *worker) increment() {
	if w.inside.Add(1) != 1 {
		w.t.Error("two goroutines of one process are inside")
	}
	defer w.inside.Add(-1)
	ctx := context.Background()
	n, err := w.rdb.Get(ctx, counterKey).Int()
	if err != nil && err != redis.Nil {
		w.t.Error(err)
	}
	if err := w.rdb.Set(ctx, counterKey, n+1, 0).Err(); err != nil {
		w.t.Error(err)
	}
	w.count.Add(1)
}

// Processes that want the same ten locks, every other one in the opposite order, never stand still.
func TestProcessesInOppositeOrders(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	const want = processes * increments
	counted := runWorkers(t, server, "TestOrderedProcess")
	rdb := connect(t, server.Addr)
	total := wiretest.Must[int64](t)(rdb.Get(t.Context(), counterKey).Int64())
	if total != counted || total != want {
		t.Errorf("the counter is %d after %d increments, want %d", total, counted, want)
	}
	if keys := wiretest.Must[[]string](t)(rdb.Keys(t.Context(), "name:*").Result()); len(keys) > 0 {
		t.Errorf("%q are held still", keys)
	}
}

// TestOrderedProcess is one of the processes of TestProcessesInOppositeOrders. By itself it does
// nothing.
func TestOrderedProcess(t *testing.T) {
	addr := os.Getenv(workerAddr)
	if addr == "" {
		return
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	first, second := dlock.New(redisbackend.New(rdb)), dlock.New(redisbackend.New(rdb))
	defer first.Close()
	defer second.Close()
	w := &worker{t: t, rdb: rdb}
	var wanted []*dlock.Locker
	for i := range 10 {
		// Half of them by way of another client: what is wanted together is sent in two parts, and
		// gets mixed with that of others.
		c := first
		if i%2 == 1 {
			c = second
		}
		wanted = append(wanted, c.Locker(fmt.Sprint("name:", i)))
	}
	if n, _ := strconv.Atoi(os.Getenv(workerNumber)); n%2 == 1 {
		slices.Reverse(wanted)
	}
	all := dlock.All(wanted...)
	ctx, cancel := context.WithTimeout(context.Background(), testservers.Patience)
	defer cancel()
	for range increments {
		err := all.Do(ctx, func(context.Context) error {
			w.increment()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("increments: %d\n", w.count.Load())
}
