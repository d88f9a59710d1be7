// Package shards divides named work, such as partitions, tenants, queues or jobs, among all
// replicas that run it. Each piece of work is a shard, and at any time at most one replica works on
// it. The replicas get even shares. When replicas come or go, few shards move.
//
//	set := shards.New(client, "billing", shards.Numbered(64))
//	err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
//		for ctx.Err() == nil { // ends when the shard is to go elsewhere, and when it is lost
//			work(ctx, s.Name())
//		}
//		return nil // from here on another replica may start it
//	})
//
// Every replica calls [Set.Run] with the same name and list, and is a member from then on. Each
// shard has a fenced lock, and a member runs the shard only while it holds that lock. So a shard
// never has two runs at a time, whatever members believe about each other. There is no coordinator,
// and the store keeps only locks:
//
//   - A member has a read hold of the read-write lock "shards:NAME". The note of that hold says
//     which seats the member has.
//   - Seats are numbered, and own shards. Every member uses the same function to compute which seat
//     owns which shards. When a member leaves a seat, the seat's next member gets the shards.
//   - The owner of a seat waits for the locks "shards:NAME@SHARD" of its shards. The previous owner
//     ends its runs, and each release lets the new owner in.
//   - The plain lock "shards:NAME!" is the bell. A member that has changed its note locks and
//     unlocks the bell. Then all members look at the notes. They also look at
//     regular intervals, a third of the lease apart.
//
// These names are reserved. A newcomer first waits a while for another member to leave a seat, so
// that a rolling deploy moves each shard once. A dead member is noticed within a lease. A member
// that is cut off from the store for less than two thirds of a lease keeps everything.
//
// The package works on every store that has fenced and read-write locks and can say who holds them.
package shards
