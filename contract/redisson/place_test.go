package redisson_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// wantHolds compares a lock's hash with the owners and their counts. The name of a client in Go is
// its ID.
func (p *place) wantHolds(t *testing.T, name string, want map[string]string) {
	t.Helper()
	fields, err := p.admin.HGetAll(t.Context(), name).Result()
	got := make(map[string]string)
	for field, count := range fields {
		if _, known := want[field]; !known {
			field = clientsOwner.ReplaceAllString(field, "$1$2")
		}
		got[field] = count
	}
	if err != nil || len(fields) != len(want) || !maps.Equal(got, want) {
		t.Errorf("HGETALL %s: %v, %v; want %v", name, fields, err, want)
	}
}

// clientsOwner matches the field of an owner in Go: its client's ID, a number, and a suffix if it
// writes or if the lock is fair.
var clientsOwner = regexp.MustCompile(`^(.*):\d+(?:(:write)|:fair)?$`)

// holder returns the field in the hash of an owner in Go that reads.
func (p *place) holder(t *testing.T, name, client string) string {
	t.Helper()
	fields, err := p.admin.HKeys(t.Context(), name).Result()
	i := slices.IndexFunc(fields, func(field string) bool {
		return clientsOwner.ReplaceAllString(field, "$1$2") == client
	})
	if i < 0 {
		t.Fatalf("HKEYS %s: %v, %v; want %s to read", name, fields, err, client)
	}
	return fields[i]
}

// left returns how long a key lasts: -2 if it isn't there, -1 if it never ends.
func (p *place) left(t *testing.T, key string) time.Duration {
	t.Helper()
	left, err := p.admin.PTTL(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// wantLeft checks that a key lasts for more than half of want, and for no longer than want.
func (p *place) wantLeft(t *testing.T, key string, want time.Duration) {
	t.Helper()
	if got := p.left(t, key); got > want || got <= want/2 {
		t.Errorf("PTTL %s: %v, want nearly %v", key, got, want)
	}
}

// wantGone checks that keys don't exist.
func (p *place) wantGone(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if left := p.left(t, key); left != -2 {
			t.Errorf("%s is still there, for %v", key, left)
		}
	}
}

// awaitWaiter waits until an owner that has not tried before waits for a message. By then it has
// subscribed, and tried again. The name of a client in Go is its ID.
func (p *place) awaitWaiter(t *testing.T, name, owner string) {
	t.Helper()
	testservers.Until(t, "it has tried, subscribed and tried again", func() bool {
		return p.monitor.refused(name, owner) >= 2
	})
	if p.subscribers(t, name) == 0 {
		t.Errorf("%s waits for %s, but is not subscribed to its channel", owner, name)
	}
}

// awaitSleep waits until a thread of Java's has fallen asleep. By then it has tried, subscribed and
// tried again.
func (p *place) awaitSleep(t *testing.T, th *thread) {
	t.Helper()
	asks := th.peer.thread(t)
	testservers.Until(t, "it sleeps", func() bool { return asks.do("sleeps", th.owner) == "true" })
}

// nudge wakes Java's threads again and again, until stop is called. A thread misses a message that
// comes after its attempt and before its sleep. Without nudge it would sleep as long as the lock
// would have lasted.
func (p *place) nudge(t *testing.T, channel string) (stop func()) {
	done := make(chan struct{})
	var nudging sync.WaitGroup
	publish := p.publisher()
	nudging.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
				publish(t.Context(), channel, "0")
			}
		}
	})
	return func() {
		close(done)
		nudging.Wait()
	}
}

// subscribers counts the connections that listen to the channels of a lock, of any kind.
func (p *place) subscribers(t *testing.T, name string) int64 {
	t.Helper()
	return p.listeners(t, channel(name), rwChannel(name), scChannel(name))
}

// listeners counts the connections that listen to channels.
func (p *place) listeners(t *testing.T, channels ...string) int64 {
	t.Helper()
	var n atomic.Int64
	count := func(ctx context.Context, node *redis.Client) error {
		numsub := node.PubSubNumSub
		if p.sharded {
			numsub = node.PubSubShardNumSub
		}
		counts, err := numsub(ctx, channels...).Result()
		for _, c := range counts {
			n.Add(c)
		}
		return err
	}
	if err := p.eachServer(t.Context(), count); err != nil {
		t.Fatal(err)
	}
	return n.Load()
}

func (p *place) eachServer(
	ctx context.Context, do func(context.Context, *redis.Client) error,
) error {
	if cluster, ok := p.admin.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, do)
	}
	return do(ctx, p.admin.(*redis.Client))
}

// messages receives the messages that are published on a channel.
type messages struct {
	t       *testing.T
	place   *place
	channel string
	pubsub  *redis.PubSub
	marks   int
}

func (p *place) listen(t *testing.T, channel string) *messages {
	t.Helper()
	subscribe := p.admin.Subscribe
	if p.sharded {
		subscribe = p.admin.SSubscribe
	}
	m := &messages{t: t, place: p, channel: channel, pubsub: subscribe(t.Context(), channel)}
	t.Cleanup(func() { m.pubsub.Close() })
	if _, err := m.pubsub.ReceiveTimeout(t.Context(), testservers.Patience); err != nil {
		t.Fatal(err)
	}
	return m
}

func (p *place) publisher() func(ctx context.Context, channel string, message any) *redis.IntCmd {
	if p.sharded {
		return p.admin.SPublish
	}
	return p.admin.Publish
}

// want checks which messages were published since the last call.
func (m *messages) want(want ...string) {
	m.t.Helper()
	publish := m.place.publisher()
	m.marks++
	mark := fmt.Sprint(100 + m.marks) // a number that has no meaning for waiters
	if err := publish(m.t.Context(), m.channel, mark).Err(); err != nil {
		m.t.Fatal(err)
	}
	for _, payload := range append(want, mark) {
		m.next(payload)
	}
}

// next checks the message that comes next.
func (m *messages) next(want string) {
	m.t.Helper()
	got, err := m.pubsub.ReceiveTimeout(m.t.Context(), testservers.Patience)
	if message, ok := got.(*redis.Message); err != nil || !ok || message.Payload != want {
		m.t.Fatalf("received %v, %v; want %v", got, err, want)
	}
}
