package main

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// Lists of the commands that the contenders' scripts call on the server.
var (
	compareAndDelete = []string{"get", "del"}
	dlockScripts     = []string{"exists", "hexists", "hincrby", "pexpire", "pttl", "del", "publish",
		"hget", "hset", "hdel", "hlen", "hmget", "hgetall", "get", "set", "time", "incr", "persist",
		"zadd", "zrem", "zscore", "zcard", "zcount", "zincrby", "zrange", "zrangebyscore",
		"zremrangebyscore", "lpop", "lpush", "rpush", "lrange", "lrem", "llen", "lindex",
		"pexpireat", "incrby", "hkeys"}
	redislockScripts = []string{"set", "getrange", "get", "del"}
	noticeScripts    = []string{"get", "del", "publish"}
)

var redisContenders = []contender{
	{name: "bare go-redis", store: onRedis, in: []string{"W1", "W12"}, role: floor,
		open: openBareRedis, scripted: compareAndDelete},
	{name: "bare go-redis", store: onRedis, in: []string{"W2", "W3"}, role: bare,
		open: openBareRedis, scripted: compareAndDelete},
	{name: "bare go-redis, alone", store: onRedis, in: []string{"W2", "W3", "W11", "W13"},
		role: solo, open: openBareRedis, scripted: compareAndDelete},
	{name: "our scripts, bare", store: onRedis, in: []string{"W1", "W12"}, role: twin,
		open: openRedisScripts, scripted: dlockScripts},
	{name: "message, round trip", store: onRedis, in: []string{"W4"}, role: floor,
		open: openRedisNotice, scripted: noticeScripts},
	{name: "our scripts, message", store: onRedis, in: []string{"W4"}, role: twin,
		open: openRedisScriptsNotice, scripted: dlockScripts},
	{name: "redsync", store: onRedis, in: []string{"W1", "W2", "W3", "W4", "W6"}, open: openRedsync,
		scripted: compareAndDelete},
	{name: "redislock", store: onRedis, in: []string{"W1", "W2", "W3", "W4", "W6"},
		open: openRedislock, scripted: redislockScripts},
	{name: "dlock", store: onRedis,
		in: []string{"W1", "W2", "W3", "W4", "W5", "W6", "W8", "W9", "W10", "W11", "W12", "W13",
			"W18"}, role: ours, open: withRedis(), scripted: dlockScripts},
	{name: "dlock, one lock", store: onRedis, in: []string{"W15"}, kind: oneLock, role: floor,
		open: withRedis(), scripted: dlockScripts},
	{name: "our scripts, one pipeline", store: onRedis, in: []string{"W15"}, role: twin,
		open: openRedisPipelines, scripted: dlockScripts},
	{name: "dlock, one after the other", store: onRedis, in: []string{"W15"}, kind: oneByOne,
		role: ours, open: withRedis(), scripted: dlockScripts},
	{name: "dlock, All", store: onRedis, in: []string{"W15"}, kind: allOfThem, role: ours,
		open: withRedis(), scripted: dlockScripts},
	{name: "dlock, traced", store: onRedis, in: []string{"W1"}, role: ours,
		open: withRedis(dlock.WithTrace(counting())), scripted: dlockScripts},
	{name: "dlock, no hand-over", store: onRedis, in: []string{"W2", "W3", "W9"}, role: ours,
		open: withRedis(dlock.WithHandover(0)), scripted: dlockScripts},
	{name: "dlock, fixed leases", store: onRedis, in: []string{"W9"}, role: ours,
		open: withFixedLeases(withRedis()), scripted: dlockScripts},
	{name: "dlock, fair", store: onRedis, in: []string{"W3", "W4"}, kind: fairLocks, role: ours,
		open: withRedis(), scripted: dlockScripts},
	{name: redissonName, store: onRedis, in: []string{"W8", "W10"}, scripted: dlockScripts},
	{name: redissonName + ", fair", store: onRedis, in: []string{"W3"}, kind: fairLocks, most: 4,
		scripted: dlockScripts},
	{name: redissonName + ", permits", store: onRedis, in: []string{"W13"}, kind: permits,
		scripted: dlockScripts},
	{name: redissonName + ", MultiLock", store: onRedis, in: []string{"W15"}, kind: allOfThem,
		scripted: dlockScripts},
}

// bareRedis acquires a lock with SET NX, and releases it with compare-and-delete. While another
// client holds the lock, it retries without a pause.
type bareRedis struct {
	rdb   *redis.Client
	lease time.Duration
}

var deleteScript = redis.NewScript(
	`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0`)

func openBareRedis(p place) (system, error) {
	return &bareRedis{redis.NewClient(&redis.Options{Addr: p.addr}), p.lease}, nil
}

func (s *bareRedis) locker(name string, _ int) (locker, error) {
	return &bareRedisLocker{s, []string{name}, rand.Text()}, nil
}

func (s *bareRedis) close() { s.rdb.Close() }

type bareRedisLocker struct {
	*bareRedis
	keys []string
	id   string
}

func (l *bareRedisLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.rdb.SetNX(ctx, l.keys[0], l.id, l.lease).Result(); done || err != nil {
			return err
		}
	}
}

func (l *bareRedisLocker) Unlock() error {
	return one(deleteScript.Run(context.Background(), l.rdb, l.keys, l.id).Int())
}

// errGone means that the lock was no longer held when it was released.
var errGone = errors.New("the lock was not held any more")

// one returns the error of a release that changed n keys or rows. That is err or, if err is nil and
// n isn't 1, errGone.
func one[N int | int64](n N, err error) error {
	if err == nil && n != 1 {
		return errGone
	}
	return err
}

// redisScripts calls the same scripts as package redisbackend, without using that package.
type redisScripts struct {
	rdb   *redis.Client
	lease time.Duration
	kind  kind
}

func openRedisScripts(p place) (system, error) { return newRedisScripts(p) }

func newRedisScripts(p place) (*redisScripts, error) {
	s := &redisScripts{redis.NewClient(&redis.Options{Addr: p.addr}), p.lease, p.kind}
	for _, call := range scriptCalls(p.kind, "", "", p.lease) {
		if err := s.rdb.ScriptLoad(context.Background(), call.Script.Text).Err(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// scriptCalls returns the script calls that acquire and release a lock.
func scriptCalls(k kind, name, owner string, lease time.Duration) [2]redisson.Call {
	acquire := backend.AcquireRequest{Name: name, Owner: owner, Lease: lease}
	release := backend.ReleaseRequest{Name: name, Owner: owner, Lease: lease}
	switch k {
	case fencedLocks:
		return [2]redisson.Call{redisson.AcquireFenced(acquire), redisson.Release(release)}
	case readLocks:
		return [2]redisson.Call{
			redisson.AcquireRead(acquire), redisson.Dialect{}.ReleaseRead(release),
		}
	case writeLocks:
		return [2]redisson.Call{
			redisson.AcquireWrite(acquire), redisson.Dialect{}.ReleaseWrite(release),
		}
	case fairLocks:
		acquire.Kind, release.Kind = backend.Fair, backend.Fair
		acquire.Place = 3 * time.Second
		return [2]redisson.Call{
			redisson.Dialect{}.AcquireFair(acquire), redisson.Dialect{}.ReleaseFair(release),
		}
	case permits:
		if len(owner) > 12 {
			owner = owner[:12] // the length of a permit's id
		}
		acquire.Owner, release.Owner = owner, owner
		acquire.Kind, release.Kind = backend.Permits, backend.Permits
		acquire.Permits, acquire.Limit, release.Permits = 1, mostInside, 1
		return [2]redisson.Call{
			redisson.Dialect{}.AcquirePermits(acquire), redisson.Dialect{}.ReleasePermits(release),
		}
	default:
		return [2]redisson.Call{redisson.Acquire(acquire), redisson.Release(release)}
	}
}

// granted reports whether a reply means that a lock of the given kind was acquired.
func granted(k kind, reply any, null bool) bool {
	words, _ := reply.([]any)
	return null || k != plainLocks && len(words) > 0
}

func (s *redisScripts) locker(name string, _ int) (locker, error) { return s.newLocker(name), nil }

func (s *redisScripts) newLocker(name string) *redisScriptsLocker {
	calls := scriptCalls(s.kind, name, rand.Text(), s.lease)
	return &redisScriptsLocker{s, calls[0], calls[1]}
}

func (s *redisScripts) close() { s.rdb.Close() }

type redisScriptsLocker struct {
	*redisScripts
	acquire, release redisson.Call
}

func (l *redisScriptsLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx); done || err != nil {
			return err
		}
	}
}

// try makes one attempt.
func (l *redisScriptsLocker) try(ctx context.Context) (bool, error) {
	reply, err := l.send(ctx, l.acquire).Result()
	if null := err == redis.Nil; null || err == nil {
		return granted(l.kind, reply, null), nil
	}
	return false, err
}

func (l *redisScriptsLocker) Unlock() error {
	return one(l.send(context.Background(), l.release).Int())
}

func (l *redisScriptsLocker) send(ctx context.Context, call redisson.Call) *redis.Cmd {
	args := make([]any, len(call.Args))
	for i, arg := range call.Args {
		args[i] = arg
	}
	return l.rdb.EvalSha(ctx, call.Script.SHA1, call.Keys, args...)
}

// redisNotice is like bareRedis, but waits for a message about the release before it retries. It
// isn't a usable lock: after a lost message, it waits forever.
type redisNotice struct{ *bareRedis }

var noticeScript = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then
	redis.call("del", KEYS[1])
	redis.call("publish", KEYS[1], "free")
	return 1
end
return 0`)

func openRedisNotice(p place) (system, error) {
	return &redisNotice{&bareRedis{redis.NewClient(&redis.Options{Addr: p.addr}), p.lease}}, nil
}

func (s *redisNotice) locker(name string, _ int) (locker, error) {
	return &redisNoticeLocker{s.bareRedis, []string{name}, rand.Text(),
		notices{rdb: s.rdb, channel: name}}, nil
}

type redisNoticeLocker struct {
	*bareRedis
	keys []string
	id   string
	free notices
}

func (l *redisNoticeLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.rdb.SetNX(ctx, l.keys[0], l.id, l.lease).Result(); done || err != nil {
			return err
		}
		if err := l.free.await(ctx); err != nil {
			return err
		}
	}
}

func (l *redisNoticeLocker) Unlock() error {
	return one(noticeScript.Run(context.Background(), l.rdb, l.keys, l.id).Int())
}

// notices receives the messages of a channel.
type notices struct {
	rdb     *redis.Client
	channel string
	sub     *redis.PubSub // nil before the first wait
}

// await waits until the lock might be free. The first call only subscribes. Later calls wait for a
// message.
func (n *notices) await(ctx context.Context) error {
	if n.sub == nil {
		n.sub = n.rdb.Subscribe(context.Background(), n.channel)
		_, err := n.sub.Receive(ctx)
		return err
	}
	_, err := n.sub.ReceiveMessage(ctx)
	return err
}

// redisScriptsNotice is like redisNotice, but uses the scripts of package redisbackend.
type redisScriptsNotice struct{ *redisScripts }

func openRedisScriptsNotice(p place) (system, error) {
	s, err := newRedisScripts(p)
	if err != nil {
		return nil, err
	}
	return redisScriptsNotice{s}, nil
}

func (s redisScriptsNotice) locker(name string, _ int) (locker, error) {
	free := notices{rdb: s.rdb, channel: redisson.Channel(name)}
	return &redisScriptsNoticeLocker{s.redisScripts.newLocker(name), free}, nil
}

type redisScriptsNoticeLocker struct {
	*redisScriptsLocker
	free notices
}

func (l *redisScriptsNoticeLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx); done || err != nil {
			return err
		}
		if err := l.free.await(ctx); err != nil {
			return err
		}
	}
}

// redsyncSystem uses package redsync with one or several servers.
type redsyncSystem struct {
	clients []*redis.Client
	sync    *redsync.Redsync
	opts    []redsync.Option
}

func openRedsync(p place) (system, error) { return newRedsync(p), nil }

func openRedsyncFast(p place) (system, error) {
	return newRedsync(p, redsync.WithFailFast(true)), nil
}

func newRedsync(p place, opts ...redsync.Option) *redsyncSystem {
	s := &redsyncSystem{opts: append(opts, redsync.WithExpiry(p.lease),
		redsync.WithTries(math.MaxInt))}
	var pools []syncredis.Pool
	for _, addr := range addresses(p.addr) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		s.clients, pools = append(s.clients, rdb), append(pools, goredis.NewPool(rdb))
	}
	s.sync = redsync.New(pools...)
	return s
}

// locker returns a mutex that doesn't give up. By default, redsync gives up after 32 attempts.
func (s *redsyncSystem) locker(name string, _ int) (locker, error) {
	return redsyncLocker{s.sync.NewMutex(name, s.opts...)}, nil
}

func (s *redsyncSystem) close() {
	for _, rdb := range s.clients {
		rdb.Close()
	}
}

type redsyncLocker struct{ m *redsync.Mutex }

func (l redsyncLocker) Lock(ctx context.Context) error { return l.m.LockContext(ctx) }

func (l redsyncLocker) Unlock() error {
	ok, err := l.m.Unlock()
	if err == nil && !ok {
		return errGone
	}
	return err
}

// redislockSystem uses package redislock, with retries every 100 ms as in its documentation. By
// default, redislock doesn't retry.
type redislockSystem struct {
	rdb    *redis.Client
	client *redislock.Client
	lease  time.Duration
}

var redislockOptions = &redislock.Options{RetryStrategy: redislock.LinearBackoff(
	100 * time.Millisecond)}

func openRedislock(p place) (system, error) {
	rdb := redis.NewClient(&redis.Options{Addr: p.addr})
	return &redislockSystem{rdb, redislock.New(rdb), p.lease}, nil
}

func (s *redislockSystem) locker(name string, _ int) (locker, error) {
	return &redislockLocker{redislockSystem: s, name: name}, nil
}

func (s *redislockSystem) close() { s.rdb.Close() }

type redislockLocker struct {
	*redislockSystem
	name string
	held *redislock.Lock
}

// Lock calls Obtain again whenever Obtain has given up. If the context has no deadline, Obtain
// gives up after the duration of a lease.
func (l *redislockLocker) Lock(ctx context.Context) (err error) {
	for {
		l.held, err = l.client.Obtain(ctx, l.name, l.lease, redislockOptions)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

func (l *redislockLocker) Unlock() error { return l.held.Release(context.Background()) }
