package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A pair is what a read-write lock guards. The race detector sees to it, too.
type pair struct {
	readers, writers atomic.Int32
	one, two         int
	reads, writes    atomic.Int64
}

func (p *pair) read(t *testing.T) {
	p.readers.Add(1)
	defer p.readers.Add(-1)
	if p.writers.Load() != 0 || p.one != p.two {
		t.Errorf("a reader sees %d writers, %d and %d", p.writers.Load(), p.one, p.two)
	}
	p.reads.Add(1)
}

func (p *pair) write(t *testing.T) {
	if p.writers.Add(1) != 1 || p.readers.Load() != 0 {
		t.Errorf("%d writers, with %d readers", p.writers.Load(), p.readers.Load())
	}
	p.one++
	p.two++
	p.writes.Add(1)
	p.writers.Add(-1)
}

// useTogether lets clients read and write, some of them with little patience, until ctx ends.
func useTogether(
	t *testing.T, ctx context.Context, p *pair, clients []*dlock.Client,
) (all *sync.WaitGroup) {
	all = new(sync.WaitGroup)
	for i, c := range clients {
		rw := c.RWLocker("n")
		for j := range 4 {
			do, side := p.read, rw.Reader()
			if j == 0 {
				do, side = p.write, rw.Writer()
			}
			wait := time.Hour
			if j == 3 {
				wait = 5 * time.Millisecond
			}
			all.Go(func() {
				for ctx.Err() == nil {
					err := side.Do(ctx, func(context.Context) error {
						do(t)
						return nil
					}, dlock.Wait(wait))
					if err != nil && ctx.Err() == nil && !errors.Is(err, dlock.ErrNotAcquired) &&
						!errors.Is(err, dlock.ErrLost) {
						t.Logf("client %d: %v", i, err)
					}
				}
			})
		}
	}
	return all
}

// TestReadersAndWritersTakeTurns: among several clients, whichever members die.
func TestReadersAndWritersTakeTurns(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	var clients []*dlock.Client
	for i := range 4 {
		c := dlock.New(etcdbackend.New(
			connectAll(t, append(addrs(members)[i%3:], addrs(members)[:i%3]...))),
			dlock.WithLease(10*time.Second))
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	var p pair
	ctx, stop := context.WithCancel(t.Context())
	all := useTogether(t, ctx, &p, clients)
	goesOn := func(what string) {
		t.Helper()
		reads, writes := p.reads.Load(), p.writes.Load()
		testservers.Until(t, "there are turns "+what, func() bool {
			return p.reads.Load() > reads+20 && p.writes.Load() > writes+20
		})
	}
	goesOn("at first")
	for i, m := range members[:2] {
		m.Kill()
		goesOn(fmt.Sprint("after the death of member ", i))
		m.Restart()
		goesOn("after its return")
	}
	stop()
	all.Wait()
	if p.one != p.two || int64(p.one) != p.writes.Load() {
		t.Errorf("%d writes have made %d and %d", p.writes.Load(), p.one, p.two)
	}
	t.Logf("%d reads, %d writes", p.reads.Load(), p.writes.Load())
}

// TestWriterAmongReaders: readers that keep coming from several clients don't starve a writer.
func TestWriterAmongReaders(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var reads atomic.Int64
	for range 3 {
		c := dlock.New(etcdbackend.New(connect(t, server.Addr)))
		t.Cleanup(func() { c.Close() })
		r := c.RWLocker("n").Reader()
		for range 3 {
			readers.Go(func() {
				for ctx.Err() == nil {
					_ = r.Do(ctx, func(context.Context) error {
						reads.Add(1)
						time.Sleep(20 * time.Millisecond) // longer than it takes another to come
						return nil
					})
				}
			})
		}
	}
	w := dlock.New(etcdbackend.New(connect(t, server.Addr)))
	defer w.Close()
	writer := w.RWLocker("n").Writer()
	testservers.Until(t, "there are readers", func() bool { return reads.Load() > 20 })
	var longest time.Duration
	for range 10 {
		limited, cancel := context.WithTimeout(t.Context(), testservers.Patience)
		begin, before := time.Now(), reads.Load()
		if err := writer.LockContext(limited); err != nil {
			t.Fatalf("a writer waits in vain, while there were %d reads: %v", reads.Load()-before,
				err)
		}
		longest = max(longest, time.Since(begin))
		if err := writer.UnlockContext(t.Context()); err != nil {
			t.Error(err)
		}
		cancel()
	}
	stop()
	readers.Wait()
	t.Logf("%d reads; the longest wait of a writer was %v", reads.Load(), longest)
}

// TestDeadReader: one that dies keeps writers out for as long as its lease, whoever else reads, and
// is forgotten.
func TestDeadReader(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	a.gets(backend.Read, func(req *backend.AcquireRequest) { req.Lease = s2 })
	b.gets(backend.Read)
	c.fails(backend.Write, lease)
	b.releases(backend.Read, backend.Freed)
	if res := c.try(backend.Write); res.Acquired || res.Remaining <= 0 ||
		res.Remaining > s2+time.Second {
		t.Errorf("beside a dead reader: %+v", res)
	}
	b.gets(backend.Read)
	testservers.Until(t, "the dead reader's hold has ended", func() bool {
		return len(keysOf(t, admin)) == 1
	})
	b.releases(backend.Read, backend.Freed)
	c.gets(backend.Write)
}

// TestFencedLocker: tokens grow, whoever locks.
func TestFencedLocker(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	var last uint64
	var turns int
	var all sync.WaitGroup
	for range 3 {
		c := dlock.New(etcdbackend.New(connect(t, server.Addr)))
		t.Cleanup(func() { c.Close() })
		l := c.FencedLocker("n")
		all.Go(func() {
			for range 20 {
				err := l.Do(t.Context(), func(ctx context.Context) error {
					token, ok := dlock.Token(ctx)
					if !ok || token <= last {
						t.Errorf("token %d, %v after %d", token, ok, last)
					}
					last = token
					turns++
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if turns != 60 {
		t.Errorf("%d turns", turns)
	}
}
