package valkeybackend

import (
	"context"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// A Fence changes keys in Valkey for the holder of a fenced lock, and refuses changes by earlier
// holders. Use [Backend.Fence] to create one.
//
// Each key that a Fence guards has a fence of its own, which is another key. It stores the largest
// token with which the guarded key was claimed. A call is one script. If a fence stores a larger
// token than the caller's, the call changes nothing, and its error wraps dlock.ErrLost. Otherwise
// the call sets the fences to the caller's token, and makes the change.
//
//	err := client.FencedLocker("lock:account:7").Do(ctx, func(ctx context.Context) error {
//		token, _ := dlock.Token(ctx)
//		fence := store.Fence(token)
//		if err := fence.Claim(ctx, "account:7"); err != nil { // before it is read
//			return err
//		}
//		get := vk.B().Hget().Key("account:7").Field("balance").Build()
//		balance, err := vk.Do(ctx, get).AsInt64()
//		if err != nil {
//			return err
//		}
//		return fence.HSet(ctx, "account:7", "balance", strconv.FormatInt(balance+10, 10))
//	})
//
// Every program that changes such a key must use a Fence, with the tokens of one lock. The lock may
// be in another store, even in etcd or PostgreSQL. Then create a Backend for the Valkey server that
// stores the data, and use that Backend only for its Fences.
//
// The fence of a key "account:7" is "distsync_fence:{account:7}". If a key contains braces, such as
// "{bank}7", it is "distsync_fence::{bank}7". In a cluster a fence is in the slot of its key, and
// all keys of a call must be in one slot. Otherwise the call fails before anything is sent. Neither
// the key nor its fence gets the prefix of [WithPrefix].
//
// A fence never expires. Delete it only when no former holder of the lock can still be running. A
// fence is as durable as the data that it guards. If Valkey loses its last writes in a failover, it
// may lose both.
//
// A call is sent once. If its error is of kind [backend.Unknown], it may have been carried out.
// Repeat it only if carrying it out twice does no harm. The user that the client logs in as needs
// EVAL, EVALSHA, GET and SET, the commands that its scripts use, and the keys distsync_fence:*.
//
// [backend.Unknown]: https://pkg.go.dev/github.com/seed951563bd/distsync/backend#ErrorKind
type Fence struct{ f redisson.Fence }

// Fence returns a [Fence] for the holder with the given token. See Hold.Token and Token in package
// dlock. A plain lock has no token. If the token is zero, every method of the Fence returns an
// error.
func (b *Backend) Fence(token uint64) Fence {
	return Fence{redisson.Fence{
		Store:     "valkey",
		Transport: &transport{client: b.client},
		Cluster:   b.client.Mode() == valkey.ClientModeCluster,
		Token:     token,
	}}
}

// Claim makes keys refuse changes by all earlier holders. Call it before you read a value that you
// are about to change. Otherwise an earlier holder may change the value between your read and your
// write.
func (f Fence) Claim(ctx context.Context, keys ...string) error { return f.f.Claim(ctx, keys) }

// Set sets a key to a value, as SET does. If expires isn't zero, the key expires after that
// duration.
func (f Fence) Set(ctx context.Context, key, value string, expires time.Duration) error {
	return f.f.Set(ctx, key, value, expires)
}

// HSet sets fields of a hash, as HSET does. pairs contains the fields, each followed by its value.
func (f Fence) HSet(ctx context.Context, key string, pairs ...string) error {
	return f.f.HSet(ctx, key, pairs)
}

// Eval checks the fences of all keys, and then runs the script with keys as KEYS and args as ARGV.
// It returns the script's result, which is nil, an int64, a string, or a []any of these. There must
// be at least one key. The script should change no other keys.
func (f Fence) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	return f.f.Eval(ctx, script, keys, args)
}
