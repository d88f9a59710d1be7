package redisson_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/testservers"
)

// wantHolds compares the hash that is a lock with the owners and their counts.
func (p *place) wantHolds(t *testing.T, name string, want map[string]string) {
	t.Helper()
	got, err := p.admin.HGetAll(t.Context(), name).Result()
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("HGETALL %s: %v, %v; want %v", name, got, err, want)
	}
}

// wantHolder is wantHolds for a single owner, of a client of ours, and returns what the hash calls
// it.
func (p *place) wantHolder(t *testing.T, name, client, count string) (owner string) {
	t.Helper()
	got, err := p.admin.HGetAll(t.Context(), name).Result()
	for owner := range got {
		if len(got) == 1 && strings.HasPrefix(owner, client+":") && got[owner] == count {
			return owner
		}
	}
	t.Errorf("HGETALL %s: %v, %v; want %s holds of %s", name, got, err, count, client)
	return ""
}

// awaitWaiter waits until an owner that has not tried before waits for a message: it is subscribed,
// and has tried since. An owner of ours is known by its client's ID.
func (p *place) awaitWaiter(t *testing.T, name, owner string) {
	t.Helper()
	testservers.Until(t, "it has tried, subscribed and tried again", func() bool {
		return p.monitor.refused(name, owner) >= 2
	})
	if p.subscribers(t, name) == 0 {
		t.Errorf("%s waits for %s, but is not subscribed to its channel", owner, name)
	}
}

func channel(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock__channel:" + name
}

// subscribers counts the connections that listen to a lock's channel.
func (p *place) subscribers(t *testing.T, name string) int64 {
	t.Helper()
	var n atomic.Int64
	count := func(ctx context.Context, node *redis.Client) error {
		numsub := node.PubSubNumSub
		if p.sharded {
			numsub = node.PubSubShardNumSub
		}
		counts, err := numsub(ctx, channel(name)).Result()
		n.Add(counts[channel(name)])
		return err
	}
	if err := p.eachServer(t.Context(), count); err != nil {
		t.Fatal(err)
	}
	return n.Load()
}

func (p *place) eachServer(ctx context.Context, do func(context.Context, *redis.Client) error) error {
	if cluster, ok := p.admin.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, do)
	}
	return do(ctx, p.admin.(*redis.Client))
}

// messages is what is published on a lock's channel.
type messages struct {
	t      *testing.T
	place  *place
	lock   string
	pubsub *redis.PubSub
	marks  int
}

func (p *place) listen(t *testing.T, lock string) *messages {
	t.Helper()
	subscribe := p.admin.Subscribe
	if p.sharded {
		subscribe = p.admin.SSubscribe
	}
	m := &messages{t: t, place: p, lock: lock, pubsub: subscribe(t.Context(), channel(lock))}
	t.Cleanup(func() { m.pubsub.Close() })
	if _, err := m.pubsub.ReceiveTimeout(t.Context(), testservers.Patience); err != nil {
		t.Fatal(err)
	}
	return m
}

// want compares what was published since the last call.
func (m *messages) want(want ...string) {
	m.t.Helper()
	publish := m.place.admin.Publish
	if m.place.sharded {
		publish = m.place.admin.SPublish
	}
	m.marks++
	mark := fmt.Sprint(100 + m.marks) // a number that means nothing to anybody
	if err := publish(m.t.Context(), channel(m.lock), mark).Err(); err != nil {
		m.t.Fatal(err)
	}
	for _, payload := range append(want, mark) {
		got, err := m.pubsub.ReceiveTimeout(m.t.Context(), testservers.Patience)
		if message, ok := got.(*redis.Message); err != nil || !ok || message.Payload != payload {
			m.t.Fatalf("received %v, %v; want %v", got, err, payload)
		}
	}
}
