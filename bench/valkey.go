package main

import (
	"context"
	"crypto/rand"
	"strconv"
	"time"

	"github.com/valkey-io/valkey-go"
	"github.com/valkey-io/valkey-go/valkeylock"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/redisson"
)

var valkeylockScripts = []string{"get", "set", "pexpireat", "del"}

// valkeyContenders lists the contenders on Valkey. Their floor is the same as on Redis: go-redis
// with a connection pool. So their ratios show the benefit of sending the requests of many
// goroutines together.
var valkeyContenders = []contender{
	{name: "bare go-redis", store: onValkey, in: []string{"W1", "W12"}, role: floor,
		open: openBareRedis, scripted: compareAndDelete},
	{name: "bare go-redis, alone", store: onValkey, in: []string{"W2", "W3", "W11", "W13"},
		role: solo, open: openBareRedis, scripted: compareAndDelete},
	{name: "bare valkey-go", store: onValkey, in: []string{"W1", "W2", "W3"}, role: bare,
		open: openBareValkey, scripted: compareAndDelete},
	{name: "our scripts, bare", store: onValkey, in: []string{"W1", "W12"}, role: twin,
		open: openValkeyScripts, scripted: dlockScripts},
	{name: "message, round trip", store: onValkey, in: []string{"W4"}, role: floor,
		open: openValkeyNotice, scripted: noticeScripts},
	{name: "valkeylock", store: onValkey, in: []string{"W1", "W2", "W3", "W4", "W5", "W6"},
		open: openValkeylock, scripted: valkeylockScripts},
	{name: "dlock", store: onValkey,
		in: []string{"W1", "W2", "W3", "W4", "W5", "W6", "W8", "W9", "W10", "W11", "W12", "W13",
			"W18"}, role: ours, open: withValkey(), scripted: dlockScripts},
	{name: "dlock, one lock", store: onValkey, in: []string{"W15"}, kind: oneLock, role: floor,
		open: withValkey(), scripted: dlockScripts},
	{name: "our scripts, one pipeline", store: onValkey, in: []string{"W15"}, role: twin,
		open: openValkeyPipelines, scripted: dlockScripts},
	{name: "dlock, one after the other", store: onValkey, in: []string{"W15"}, kind: oneByOne,
		role: ours, open: withValkey(), scripted: dlockScripts},
	{name: "dlock, All", store: onValkey, in: []string{"W15"}, kind: allOfThem, role: ours,
		open: withValkey(), scripted: dlockScripts},
	{name: "dlock, no hand-over", store: onValkey, in: []string{"W2", "W3", "W9"}, role: ours,
		open: withValkey(dlock.WithHandover(0)), scripted: dlockScripts},
	{name: "dlock, fixed leases", store: onValkey, in: []string{"W9"}, role: ours,
		open: withFixedLeases(withValkey()), scripted: dlockScripts},
	{name: "dlock, fair", store: onValkey, in: []string{"W3", "W4"}, kind: fairLocks, role: ours,
		open: withValkey(), scripted: dlockScripts},
	{name: redissonName, store: onValkey, in: []string{"W8", "W10"}, scripted: dlockScripts},
	{name: redissonName + ", fair", store: onValkey, in: []string{"W3"}, kind: fairLocks, most: 4,
		scripted: dlockScripts},
	{name: redissonName + ", permits", store: onValkey, in: []string{"W13"}, kind: permits,
		scripted: dlockScripts},
	{name: redissonName + ", MultiLock", store: onValkey, in: []string{"W15"}, kind: allOfThem,
		scripted: dlockScripts},
}

// bareValkey is like bareRedis, but uses valkey-go.
type bareValkey struct {
	client valkey.Client
	lease  string // in milliseconds
}

var valkeyDelete = valkey.NewLuaScript(
	`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0`)

func openBareValkey(p place) (system, error) { return newBareValkey(p) }

func newBareValkey(p place) (*bareValkey, error) {
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{p.addr}})
	if err != nil {
		return nil, err
	}
	return &bareValkey{client, strconv.FormatInt(p.lease.Milliseconds(), 10)}, nil
}

func (s *bareValkey) locker(name string, _ int) (locker, error) {
	return &bareValkeyLocker{s, []string{name}, []string{rand.Text()}}, nil
}

func (s *bareValkey) close() { s.client.Close() }

type bareValkeyLocker struct {
	*bareValkey
	keys, args []string
}

func (l *bareValkeyLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx); done || err != nil {
			return err
		}
	}
}

// try makes one attempt.
func (l *bareValkeyLocker) try(ctx context.Context) (bool, error) {
	set := l.client.B().Arbitrary("SET").Keys(l.keys...).Args(l.args[0], "NX", "PX", l.lease).
		Build()
	err := l.client.Do(ctx, set).Error()
	if valkey.IsValkeyNil(err) {
		return false, nil
	}
	return err == nil, err
}

func (l *bareValkeyLocker) Unlock() error {
	return one(valkeyDelete.Exec(context.Background(), l.client, l.keys, l.args).AsInt64())
}

// valkeyScripts is like redisScripts, but uses valkey-go.
type valkeyScripts struct {
	client valkey.Client
	lease  time.Duration
	kind   kind
}

func openValkeyScripts(p place) (system, error) { return newValkeyScripts(p) }

func newValkeyScripts(p place) (*valkeyScripts, error) {
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{p.addr}})
	if err != nil {
		return nil, err
	}
	for _, call := range scriptCalls(p.kind, "", "", p.lease) {
		load := client.B().ScriptLoad().Script(call.Script.Text).Build()
		if err := client.Do(context.Background(), load).Error(); err != nil {
			return nil, err
		}
	}
	return &valkeyScripts{client, p.lease, p.kind}, nil
}

func (s *valkeyScripts) locker(name string, _ int) (locker, error) {
	calls := scriptCalls(s.kind, name, rand.Text(), s.lease)
	return &valkeyScriptsLocker{s, calls[0], calls[1]}, nil
}

func (s *valkeyScripts) close() { s.client.Close() }

func (s *valkeyScripts) build(call redisson.Call) valkey.Completed {
	return s.client.B().Evalsha().Sha1(call.Script.SHA1).Numkeys(int64(len(call.Keys))).
		Key(call.Keys...).Arg(call.Args...).Build()
}

type valkeyScriptsLocker struct {
	*valkeyScripts
	acquire, release redisson.Call
}

func (l *valkeyScriptsLocker) Lock(ctx context.Context) error {
	for {
		reply, err := l.send(ctx, l.acquire).ToAny()
		null := valkey.IsValkeyNil(err)
		switch {
		case granted(l.kind, reply, null):
			return nil
		case err != nil:
			return err
		}
	}
}

func (l *valkeyScriptsLocker) Unlock() error {
	return one(l.send(context.Background(), l.release).AsInt64())
}

func (l *valkeyScriptsLocker) send(ctx context.Context, call redisson.Call) valkey.ValkeyResult {
	return l.client.Do(ctx, l.build(call))
}

// valkeyNotice is like redisNotice, but uses valkey-go.
type valkeyNotice struct{ *bareValkey }

var valkeyNoticeScript = valkey.NewLuaScript(`if redis.call("get", KEYS[1]) == ARGV[1] then
	redis.call("del", KEYS[1])
	redis.call("publish", KEYS[1], "free")
	return 1
end
return 0`)

func openValkeyNotice(p place) (system, error) {
	bare, err := newBareValkey(p)
	if err != nil {
		return nil, err
	}
	return &valkeyNotice{bare}, nil
}

func (s *valkeyNotice) locker(name string, _ int) (locker, error) {
	bare := &bareValkeyLocker{s.bareValkey, []string{name}, []string{rand.Text()}}
	return &valkeyNoticeLocker{bareValkeyLocker: bare}, nil
}

type valkeyNoticeLocker struct {
	*bareValkeyLocker
	free chan struct{} // nil before the first wait
}

func (l *valkeyNoticeLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx); done || err != nil {
			return err
		}
		if err := l.await(ctx); err != nil {
			return err
		}
	}
}

func (l *valkeyNoticeLocker) await(ctx context.Context) error {
	if l.free == nil {
		return l.subscribe(ctx)
	}
	select {
	case <-l.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *valkeyNoticeLocker) subscribe(ctx context.Context) error {
	l.free = make(chan struct{}, 1)
	conn, _ := l.client.Dedicate() // the client's Close also closes conn
	conn.SetPubSubHooks(valkey.PubSubHooks{OnMessage: func(valkey.PubSubMessage) {
		select {
		case l.free <- struct{}{}:
		default:
		}
	}})
	return conn.Do(ctx, conn.B().Subscribe().Channel(l.keys[0]).Build()).Error()
}

func (l *valkeyNoticeLocker) Unlock() error {
	return one(valkeyNoticeScript.Exec(context.Background(), l.client, l.keys, l.args).AsInt64())
}

// valkeylockSystem uses package valkeylock. It uses one key for each lock, as other contenders do,
// rather than the default of three. It turns off messages about the client's own changes, which is
// the faster of the two modes. It also allows an attempt to take longer than the default of 20 ms.
// On a busy machine, an attempt that exceeds the limit would wait for a message that never comes.
type valkeylockSystem struct{ valkeylock.Locker }

func openValkeylock(p place) (system, error) {
	l, err := valkeylock.NewLocker(valkeylock.LockerOption{
		ClientOption:   valkey.ClientOption{InitAddress: []string{p.addr}},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    p.lease,
		TryNextAfter:   time.Second,
	})
	if err != nil {
		return nil, err
	}
	return valkeylockSystem{l}, nil
}

func (s valkeylockSystem) locker(name string, _ int) (locker, error) {
	return &valkeylockLocker{valkeylockSystem: s, name: name}, nil
}

func (s valkeylockSystem) close() { s.Close() }

type valkeylockLocker struct {
	valkeylockSystem
	name   string
	held   context.Context
	cancel context.CancelFunc
}

func (l *valkeylockLocker) Lock(ctx context.Context) (err error) {
	l.held, l.cancel, err = l.WithContext(ctx, l.name)
	return err
}

// Unlock returns errGone if the lock was lost, which valkeylock itself doesn't report.
func (l *valkeylockLocker) Unlock() error {
	lost := l.held.Err() != nil
	l.cancel()
	if lost {
		return errGone
	}
	return nil
}
