package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

// Whatever is wrong with a server, nobody gets a lock, and the error says what it is: at once, or
// when the call's context ends.
func TestWrongServers(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	server.Do("CONFIG", "SET", "requirepass", "secret")
	nodes := testservers.RedisCluster(t, 3)
	for _, node := range nodes {
		node.Do("CONFIG", "SET", "requirepass", "secret")
	}
	cluster := testservers.RedisCluster(t, 2)
	_, slaves := testservers.RedisReplicated(t, 1)
	free := testservers.Redis(t)
	free.Do("ACL", "SETUSER", "noscripts", "on", ">secret", "~*", "&*", "+@all", "-eval",
		"-evalsha")
	free.Do("ACL", "SETUSER", "nokeys", "on", ">secret", "~other", "&*", "+@all")
	odd := testservers.Redis(t, "--rename-command", "EVALSHA", "")
	odder := testservers.Redis(t, "--rename-command", "EVAL", "")
	nowhere := fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(t))
	guess := func(o *redis.Options) { o.Password = "guess" }

	for name, c := range map[string]struct {
		client  redis.UniversalClient
		says    string
		refused bool // at once
	}{
		"down": {
			connect(t, nowhere, func(o *redis.Options) { o.DialerRetries = 1 }),
			"connection refused", false,
		},
		"cluster down": {redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{nowhere}, DialerRetries: 1,
		}),
			"connection refused", false},
		"sentinels down": {redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "main", SentinelAddrs: []string{nowhere}, DialerRetries: 1, MaxRetries: -1,
			DialTimeout: time.Second}),
			"sentinels specified in configuration are unreachable", false},
		"no password":    {connect(t, server.Addr), "NOAUTH", true},
		"wrong password": {connect(t, server.Addr, guess), "WRONGPASS", true},
		"cluster, password": {connectCluster(t, nodes, func(o *redis.ClusterOptions) {
			o.Password = "guess"
		}), "WRONGPASS", true},
		"replica":      {connect(t, slaves[0].Addr), "READONLY", false},
		"no scripts":   {connect(t, free.Addr, as("noscripts")), "NOPERM", true},
		"no such keys": {connect(t, free.Addr, as("nokeys")), "NOPERM", true},
		"no EVALSHA":   {connect(t, odd.Addr), "EVAL and EVALSHA pass", true},
		"no EVAL":      {connect(t, odder.Addr), "EVAL and EVALSHA pass", true},
		"no such database": {
			connect(t, free.Addr, func(o *redis.Options) { o.DB = 99 }), "DB index is out of range",
			true,
		},
		"cluster, database": {
			connect(t, cluster[0].Addr, func(o *redis.Options) { o.DB = 1 }),
			"SELECT is not allowed", true,
		},
		"not a cluster": {
			connectCluster(t, []*testservers.Server{free}), "cluster support disabled", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer c.client.Close()
			for _, opts := range [][]redisbackend.Option{
				nil, {redisbackend.WithShardedPubSub()},
				{redisbackend.WithReplicas(1, wiretest.Scant)},
			} {
				locks := dlock.New(redisbackend.New(c.client, opts...))
				defer locks.Close()
				ok, err := locks.Locker("n").TryLock(t.Context())
				if ok || err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("TryLock: %v, %v; want an error that says %q", ok, err, c.says)
				}
				if c.refused {
					err = locks.Locker("n").LockContext(t.Context())
					if err == nil || !strings.Contains(err.Error(), c.says) {
						t.Errorf("LockContext: %v, want an error that says %q", err, c.says)
					}
					continue
				}
				// A context may end before the client library knows what is wrong.
				testservers.Until(t, "LockContext says "+c.says, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					err = locks.Locker("n").LockContext(ctx)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("LockContext: %v", err)
					}
					return strings.Contains(err.Error(), c.says)
				})
			}
		})
	}
	if n := free.Do("DBSIZE"); n != "0" {
		t.Errorf("%s keys stay behind", n)
	}
}

func TestWithoutSubscriptions(t *testing.T) {
	wiretest.Deaf(t, this, testservers.Redis(t, "--rename-command", "SUBSCRIBE", ""))
}

func TestPermissions(t *testing.T) { wiretest.Permissions(t, this, testservers.Redis(t)) }

// A server that answers nobody for a while delays waiters for no longer than that.
func TestServerPauses(t *testing.T) {
	t.Parallel()
	wiretest.Paused(t, this, testservers.Redis(t))
}
