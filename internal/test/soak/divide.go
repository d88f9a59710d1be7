package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

// divided lists the names that package shards gives to the locks of the shards.
var divided = []string{"shards:soak@0", "shards:soak@1"}

// divide makes a user join a set of shards for some time, and run the shards that it is assigned.
// Each run of a shard is a separate hold.
func (u *user) divide() {
	ctx, cancel := context.WithTimeout(context.Background(), u.upTo(4*u.Lease))
	defer cancel()
	set := shards.New(u.current().client, "soak", shards.Numbered(len(divided)),
		shards.Settle(u.Lease/4), shards.WithLogger(slog.New(slog.DiscardHandler)))
	seed, asked := u.dice.Uint64(), now()
	err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		v := u.shardVisit(s, seed)
		v.hold.Asked = asked
		v.enter("a run of a shard")
		v.valid = func() bool { return s.Finishing().Err() == nil }
		v.linger(func() { <-ctx.Done() })
		v.hold.Lost = s.Finishing().Err() != nil &&
			errors.Is(context.Cause(s.Finishing()), dlock.ErrLost)
		v.report(0)
		v.leave()
		return nil
	})
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, dlock.ErrClosed) && !errors.Is(err, errors.ErrUnsupported) {
		u.tell(event{Wrong: "a member's Run: " + err.Error()})
	}
}

// shardVisit returns the visit for a run of a shard. Other visits of the user may run at the same
// time.
func (u *user) shardVisit(s *shards.Shard, seed uint64) *visit {
	beside := &user{
		party: u.party, dice: rand.New(rand.NewPCG(seed, s.Token())), owner: dlock.NewOwner(),
	}
	v := &visit{user: beside, line: u.current(), ctx: context.Background()}
	v.use = use{"shards:soak@" + s.Name(), backend.Fenced}
	v.hold = hold{Visit: u.next(), Name: v.use.name, Lease: u.Lease, Number: s.Token()}
	v.numbered()
	return v
}
