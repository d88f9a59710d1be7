package history_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/internal/test/history"
)

// A division is shards that random members divide.
type division struct {
	testing.TB
	recorder *history.Recorder
	clients  []*dlock.Client
	lease    time.Duration
	length   time.Duration
	forces   bool // somebody forces the lock of a shard now and then
}

var divided = shards.Numbered(3)

// lockOf returns the lock of a shard.
func lockOf(shard string) history.Lock {
	return history.Lock{Name: "shards:s@" + shard, Kind: backend.Fenced}
}

// run has each client be a member for a while, again and again.
func (d *division) run(ctx context.Context, seed uint64) {
	end := time.Now().Add(d.length)
	var all sync.WaitGroup
	for i, c := range d.clients {
		dice := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				stays := min(d.length/4+time.Duration(dice.Int64N(int64(d.length))),
					time.Until(end))
				member, leave := context.WithTimeout(ctx, stays)
				d.member(member, c, i, dice.Uint64())
				leave()
			}
		})
	}
	for d.forces && time.Now().Before(end) {
		i := len(d.clients)
		time.Sleep(d.lease)
		d.party(d.clients[0], i, divided[rand.N(len(divided))]).ForceUnlock(ctx)
	}
	all.Wait()
}

// party returns one that notes what becomes of a shard.
func (d *division) party(c *dlock.Client, user int, shard string) *history.Party {
	return &history.Party{
		User: user, Client: user % len(d.clients), Lease: d.lease, Kind: backend.Fenced,
		Locker: c.FencedLocker(lockOf(shard).Name), Recorder: d.recorder,
	}
}

// member is a member until the context ends. Its runs look all the time whether they may be relied
// on; some return early, and some long after they were told to. None is overdue: Finishing, which
// is what they look at, ends with the hold of the shard, and not before.
func (d *division) member(ctx context.Context, c *dlock.Client, user int, seed uint64) {
	d.Helper()
	quiet := slog.New(slog.DiscardHandler)
	set := shards.New(c, "s", divided, shards.Settle(d.lease/10), shards.Grace(time.Hour),
		shards.WithLogger(quiet))
	err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		dice := rand.New(rand.NewPCG(seed, s.Token()))
		slow := dice.IntN(4) == 0
		p := d.party(c, user, s.Name())
		p.Given(s.Finishing(), func() {
			for p.Check(ctx) && (slow || ctx.Err() == nil) && dice.IntN(20) > 0 {
				time.Sleep(time.Duration(dice.Int64N(int64(d.lease / 10))))
			}
		})
		return nil
	})
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		d.Errorf("Run = %v", err)
	}
}
