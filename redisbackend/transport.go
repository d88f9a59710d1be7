package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/gather"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// transport sends commands with a go-redis client.
type transport struct {
	client redis.UniversalClient
	// cluster is the value of the field client if that is a ClusterClient, and nil otherwise.
	cluster *redis.ClusterClient
	// sender lets steps share round trips. If it is nil, each step has its own.
	sender *gather.Sender[*command, *command]
}

func (t *transport) Send(ctx context.Context, cmd redisson.Command) redisson.Reply {
	c := t.command(ctx, cmd)
	if err := t.send(ctx, c); err != nil {
		return redisson.Reply{Err: err}
	}
	return c.reply()
}

func (t *transport) SendTogether(ctx context.Context, cmds ...redisson.Command) []redisson.Reply {
	all := t.commands(ctx, cmds)
	if err := t.send(ctx, all...); err != nil {
		return slices.Repeat([]redisson.Reply{{Err: err}}, len(cmds))
	}
	return replies(all)
}

// SendApart sends all commands to the server of the first command's key, because a ClusterClient
// can't choose a server for a command without a key.
func (t *transport) SendApart(ctx context.Context, cmds ...redisson.Command) []redisson.Reply {
	node := t.client
	if t.cluster != nil {
		master, err := master(ctx, t.cluster, cmds[0].Keys[0])
		if err != nil {
			return slices.Repeat([]redisson.Reply{{Err: err}}, len(cmds))
		}
		node = master
	}
	all := t.commands(ctx, cmds)
	t.pipeline(ctx, node, all...)
	return replies(all)
}

func (t *transport) SendBatch(ctx context.Context, cmds []redisson.Command) []redisson.Reply {
	all := t.commands(ctx, cmds)
	t.pipeline(ctx, t.client, all...)
	return replies(all)
}

// Reach returns nil. There is no need to check the server first, since each command records whether
// it was sent.
func (t *transport) Reach(context.Context, string) error { return nil }

func (t *transport) Node(ctx context.Context, key string) (string, error) {
	node, err := master(ctx, t.cluster, key)
	if err != nil {
		return "", err
	}
	return node.Options().Addr, nil
}

// Masters returns the addresses of the cluster's masters. If the client doesn't know its masters
// yet, ForEachMaster asks the cluster for them.
func (t *transport) Masters(ctx context.Context) ([]string, error) {
	var mu sync.Mutex
	var addrs []string
	err := t.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		addrs = append(addrs, node.Options().Addr)
		return nil
	})
	if err == nil && len(addrs) == 0 {
		err = errors.New("redis: no master is known")
	}
	if err != nil {
		return nil, notSent(err)
	}
	slices.Sort(addrs)
	return addrs, nil
}

func (t *transport) SendTo(
	ctx context.Context, master string, cmd redisson.Command,
) redisson.Reply {
	r := redisson.Reply{Err: notSent(fmt.Errorf("redis: %s is no longer a master", master))}
	err := t.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		if node.Options().Addr == master {
			c := t.command(ctx, cmd)
			_ = node.Process(ctx, c) // returns the command's own error
			r = c.reply()
		}
		return nil
	})
	if err != nil {
		return redisson.Reply{Err: notSent(err)}
	}
	return r
}

// Refresh does nothing, since go-redis refreshes its own map of the cluster.
func (t *transport) Refresh(context.Context) {}

// master returns the client of the master that serves the key's slot.
func master(ctx context.Context, cluster *redis.ClusterClient, key string) (*redis.Client, error) {
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, notSent(err)
	}
	return node, nil
}

// command converts a command to one for go-redis. It makes sure that the command goes to a master,
// even if it only reads.
func (t *transport) command(ctx context.Context, cmd redisson.Command) *command {
	c := newCommand(ctx, cmd)
	c.master = c.asks && len(cmd.Keys) > 0 && t.cluster != nil && t.cluster.Options().ReadOnly
	return c
}

func (t *transport) commands(ctx context.Context, cmds []redisson.Command) []*command {
	all := make([]*command, len(cmds))
	for i, cmd := range cmds {
		all[i] = t.command(ctx, cmd)
	}
	return all
}

func replies(cmds []*command) []redisson.Reply {
	all := make([]redisson.Reply, len(cmds))
	for i, c := range cmds {
		all[i] = c.reply()
	}
	return all
}

// send sends commands together. It returns an error if ctx ended before they were answered.
// Otherwise each command has its own reply or error.
func (t *transport) send(ctx context.Context, cmds ...*command) error {
	if t.sender == nil {
		t.sendNow(ctx, cmds...)
		return nil
	}
	_, err := t.sender.Send(ctx, cmds...)
	return err
}

// sendNow sends commands in this goroutine. It returns only when they have replies or errors.
func (t *transport) sendNow(ctx context.Context, cmds ...*command) {
	if len(cmds) > 1 {
		t.pipeline(ctx, t.client, cmds...)
		return
	}
	_ = t.client.Process(ctx, cmds[0]) // returns the command's own error
	t.learn(ctx, cmds...)
}

// pipeline uses the client to send commands in one pipeline. When it returns, each command has its
// own reply or error.
func (t *transport) pipeline(ctx context.Context, client redis.UniversalClient, cmds ...*command) {
	pipe := client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // returns no error, since it only queues
	}
	// Exec returns the first error of the commands. But if the server answers the greeting of a
	// connection with an error, go-redis doesn't set the commands' errors.
	if _, err := pipe.Exec(ctx); err != nil && !slices.ContainsFunc(cmds, (*command).answered) {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	t.learn(ctx, cmds...)
}

// learn makes a ClusterClient reload its map of slots if a command got no answer, or went to the
// wrong server. Without this, go-redis would reload the map only when it retries a command and, by
// default, once a minute.
func (t *transport) learn(ctx context.Context, cmds ...*command) {
	if t.cluster != nil && slices.ContainsFunc(cmds, (*command).astray) {
		t.cluster.ReloadState(ctx)
	}
}
