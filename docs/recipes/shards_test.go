package recipes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/membackend"
)

// orders is a queue in memory, to which a message comes each second.
type orders struct {
	mu      sync.Mutex
	at      map[string]int
	newest  map[string]uint64
	handled map[string]int // by message
	by      map[int]int    // how many messages each replica has handled
}

func newOrders() *orders {
	return &orders{
		at: map[string]int{}, newest: map[string]uint64{}, handled: map[string]int{},
		by: map[int]int{},
	}
}

func (o *orders) Next(ctx context.Context, partition string) ([]string, int, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	position := o.at[partition] + 1
	return []string{fmt.Sprint(partition, "/", position)}, position, nil
}

func (o *orders) Commit(_ context.Context, partition string, position int, token uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if token < o.newest[partition] {
		return errors.New("another has the partition")
	}
	o.newest[partition], o.at[partition] = token, position
	return nil
}

func (o *orders) handle(replica int) func(context.Context, string) error {
	return func(ctx context.Context, message string) error {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.handled[message]++
		o.by[replica]++
		return nil
	}
}

type consumer func(
	ctx context.Context, client *dlock.Client, q log, handle func(context.Context, string) error,
)

// consumed has three replicas consume for an hour, the second and third a moment after the first.
// After half an hour the first is deployed anew.
func consumed(t *testing.T, work consumer) *orders {
	o := newOrders()
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var all sync.WaitGroup
		start := func(replica int) (end context.CancelFunc) {
			client := replicaOn(t, store)
			ctx, end := context.WithCancel(ctx)
			all.Go(func() { work(ctx, client, o, o.handle(replica)) })
			time.Sleep(time.Second)
			return end
		}
		end := start(0)
		start(1)
		start(2)
		time.Sleep(30 * time.Minute)
		start(3)
		end()
		all.Wait()
	})
	return o
}

func TestWhoComesFirstHasAllPartitions(t *testing.T) {
	o := consumed(t, consumeWrong)
	if o.by[1] > 0 && o.by[2] > 0 && o.by[1]+o.by[2] > o.by[0] {
		t.Errorf("the replicas have handled %v", o.by)
	}
}

func TestPartitionsAreDivided(t *testing.T) {
	o := consumed(t, func(
		ctx context.Context, c *dlock.Client, q log, handle func(context.Context, string) error,
	) {
		if err := consume(ctx, c, q, handle); ctx.Err() == nil {
			t.Error(err)
		}
	})
	for message, n := range o.handled {
		if n != 1 {
			t.Errorf("message %s was handled %d times", message, n)
		}
	}
	first, second, third, new := o.by[0]+o.by[3], o.by[1], o.by[2], o.by[3]
	if least, most := min(first, second, third), max(first, second, third); least < most*9/10 ||
		new == 0 {
		t.Errorf("the replicas have handled %v", o.by)
	}
	for partition, n := range o.at {
		if n < 3200 { // of 3,272
			t.Errorf("partition %s is at %d", partition, n)
		}
	}
}

var tenants = []string{
	"acme", "bolt", "core", "dune", "echo", "foxy", "gold", "hive", "iris", "jade", "kite",
}

// ranJobs has three replicas run jobs for some hours, and one of them end after the first. It
// returns how often each tenant's job has run after that.
func ranJobs(
	t *testing.T, work func(
		ctx context.Context, replica uint32, client *dlock.Client, job func(
			context.Context, string,
		) error,
	),
) map[string]int {
	ran := make(map[string]int)
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var mu sync.Mutex
		var all sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Hour)
		defer cancel()
		for i := range uint32(3) {
			client := replicaOn(t, store)
			ctx, end := context.WithCancel(ctx)
			if i == 1 {
				time.AfterFunc(time.Hour, end)
			}
			all.Go(func() {
				defer end()
				work(ctx, i, client, func(_ context.Context, tenant string) error {
					mu.Lock()
					defer mu.Unlock()
					ran[tenant]++
					return nil
				})
			})
		}
		time.Sleep(time.Hour + time.Minute/2)
		mu.Lock()
		clear(ran)
		mu.Unlock()
		all.Wait()
	})
	return ran
}

func TestTenantsOfADeadReplica(t *testing.T) {
	ran := ranJobs(t, func(
		ctx context.Context, replica uint32, _ *dlock.Client, job func(
			context.Context, string,
		) error,
	) {
		tenantsWrong(ctx, replica, 3, tenants, job)
	})
	if len(ran) == 0 || len(ran) == len(tenants) {
		t.Errorf("after a replica has ended %d of %d tenants have their jobs", len(ran),
			len(tenants))
	}
}

func TestOneCronForEachTenant(t *testing.T) {
	ran := ranJobs(t, func(
		ctx context.Context, _ uint32, client *dlock.Client,
		job func(context.Context, string) error,
	) {
		if err := tenantsJobs(ctx, client, func() []string {
			return tenants
		}, job); ctx.Err() == nil {
			t.Error(err)
		}
	})
	if got := slices.Sorted(maps.Keys(ran)); !slices.Equal(got, tenants) {
		t.Errorf("after a replica has ended these have their jobs: %q", got)
	}
	for tenant, n := range ran {
		if n < 3 || n > 4 { // in four hours, of which the first may have begun before
			t.Errorf("the job of %s has run %d times", tenant, n)
		}
	}
}

func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		status := func(set *shards.Set, wrong bool) int {
			handler := ready(set)
			if wrong {
				handler = readyWrong(set)
			}
			w := httptest.NewRecorder()
			handler(w, httptest.NewRequest("GET", "/ready", nil))
			return w.Code
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		var sets []*shards.Set
		for range 3 { // and there are two shards
			set := shards.New(replicaOn(t, store), "s", shards.Numbered(2))
			sets = append(sets, set)
			if got := status(set, false); got != 503 {
				t.Errorf("before it is a member it answers %d", got)
			}
			all.Go(func() {
				set.Run(ctx, func(ctx context.Context, _ *shards.Shard) error {
					<-ctx.Done()
					return nil
				})
			})
			time.Sleep(time.Second)
			if got := status(set, false); got != 200 {
				t.Errorf("as a member it answers %d", got)
			}
		}
		time.Sleep(time.Hour)
		notReady := 0
		for _, set := range sets {
			if status(set, true) != 200 {
				notReady++
			}
		}
		if notReady != 1 {
			t.Errorf("after an hour %d replicas still say that they aren't ready", notReady)
		}
	})
}
