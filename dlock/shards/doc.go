// Package shards divides named work among all replicas that run it: partitions, tenants, queues or
// jobs, each of which one replica has at a time, all replicas evenly, with few moves.
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
// shard has a fenced lock, and is run inside a hold of that lock. So locks exclude two runs of a
// shard, whatever members believe of each other. There is no coordinator, and the store keeps only
// locks:
//
//   - A member reads the read-write lock "shards:NAME". The note of its hold says which seats it has.
//   - Seats are numbered, and have shards: which seat has which is a function that each member
//     computes. A member that leaves a seat leaves its shards to the one that takes the seat next.
//   - The owner of a seat waits for the locks "shards:NAME@SHARD" of its shards. The owner before
//     ends its runs, and each release lets the next one in.
//   - The plain lock "shards:NAME!" is the bell: a member that has changed something locks and
//     unlocks it, and all look. They also look each third of a lease.
//
// These names are reserved. A newcomer waits for a while for a seat that a member leaves, so that a
// rolling deploy moves each shard once. A dead member is missed within a lease. A member that is cut
// off from the store for less than two thirds of a lease keeps everything.
//
// It works on every store that has fenced and read-write locks and can say who holds them.
package shards
