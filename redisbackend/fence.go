package redisbackend

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// A Fence changes keys in Redis for the holder of a fenced lock, and refuses the holders that came
// before it. Make it with [Backend.Fence].
//
// Each key that is changed so has a fence beside it, a key with the largest token that has claimed
// it. A call is one script. If a fence has a larger token, the call changes nothing, and its error
// wraps dlock.ErrLost. Otherwise the fences are set to the caller's token, and the change is made.
//
//	err := client.FencedLocker("lock:account:7").Do(ctx, func(ctx context.Context) error {
//		token, _ := dlock.Token(ctx)
//		fence := store.Fence(token)
//		if err := fence.Claim(ctx, "account:7"); err != nil { // before it is read
//			return err
//		}
//		balance, err := rdb.HGet(ctx, "account:7", "balance").Int()
//		if err != nil {
//			return err
//		}
//		return fence.HSet(ctx, "account:7", "balance", strconv.Itoa(balance+10))
//	})
//
// All who change a key must do it by way of a Fence, with tokens of one lock. The lock may be in
// another store, even in etcd or PostgreSQL: then make a Backend for the Redis that has the data,
// and use it for nothing else.
//
// The fence of a key "account:7" is "distsync_fence:{account:7}". If a key has braces, as
// "{bank}7", it is "distsync_fence::{bank}7". In a cluster it is in the slot of the key, and all
// keys of a call must be in one slot. What can't be so is refused before anything is sent. Neither
// key gets the prefix of [WithPrefix].
//
// A fence never expires. Delete it only when no holder that took the lock before can still be
// running. A fence is as durable as the data beside it: where Redis loses its last writes in a
// failover, it may lose both.
//
// A call is sent once. If its error is of kind [backend.Unknown], it may have been carried out; the
// same call can be made again if it may be carried out twice. The client's user needs EVAL,
// EVALSHA, GET and SET, what the scripts use, and the keys distsync_fence:*.
//
// [backend.Unknown]: https://pkg.go.dev/github.com/seed951563bd/distsync/backend#ErrorKind
type Fence struct{ f redisson.Fence }

// Fence returns a fence for the holder that has a token: see Hold.Token and Token in package dlock.
// A plain lock has none, and without one every call returns an error.
func (b *Backend) Fence(token uint64) Fence {
	t := &transport{client: b.client}
	t.cluster, _ = b.client.(*redis.ClusterClient)
	return Fence{redisson.Fence{
		Store: "redis", Transport: t, Cluster: t.cluster != nil, Token: token,
	}}
}

// Claim makes keys refuse all holders that came before. Call it before you read what you are about
// to change: otherwise such a holder may still change it between your read and your write.
func (f Fence) Claim(ctx context.Context, keys ...string) error { return f.f.Claim(ctx, keys) }

// Set sets a key to a value, as SET does. If expires isn't zero the key expires after that.
func (f Fence) Set(ctx context.Context, key, value string, expires time.Duration) error {
	return f.f.Set(ctx, key, value, expires)
}

// HSet sets fields of a hash, as HSET does. The pairs are fields and values by turns.
func (f Fence) HSet(ctx context.Context, key string, pairs ...string) error {
	return f.f.HSet(ctx, key, pairs)
}

// Eval runs a script, behind a guard of all its keys, and returns what the script returns: nil, an
// int64, a string, or a []any of these. There must be at least one key. The script sees its own
// KEYS and ARGV. It should change no other keys.
func (f Fence) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	return f.f.Eval(ctx, script, keys, args)
}
