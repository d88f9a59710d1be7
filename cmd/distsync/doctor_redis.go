package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
)

// A node is a Redis or Valkey server.
type node struct {
	which string // prefix of messages about the server; empty if there is only one
	do    func(ctx context.Context, args ...string) ([]string, error)
}

// nodes returns the servers of a cluster, or the single server if there is no cluster.
func (s *store) nodes(ctx context.Context) ([]node, error) {
	var all []node
	switch client := s.redis.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex
		err := client.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, node{c.Options().Addr + ": ", redisDo(c)})
			return nil
		})
		slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.which, b.which) })
		return all, err
	case *redis.Client:
		return []node{{"", redisDo(client)}}, nil
	}
	if s.valkey.Mode() != valkey.ClientModeCluster {
		return []node{{"", valkeyDo(s.valkey)}}, nil
	}
	for addr, c := range s.valkey.Nodes() {
		all = append(all, node{addr + ": ", valkeyDo(c)})
	}
	slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.which, b.which) })
	return all, nil
}

func redisDo(client *redis.Client) func(context.Context, ...string) ([]string, error) {
	return func(ctx context.Context, args ...string) ([]string, error) {
		anys := make([]any, len(args))
		for i, a := range args {
			anys[i] = a
		}
		reply, err := client.Do(ctx, anys...).Result()
		return texts(reply), err
	}
}

func valkeyDo(client valkey.Client) func(context.Context, ...string) ([]string, error) {
	return func(ctx context.Context, args ...string) ([]string, error) {
		reply, err := client.Do(ctx, client.B().Arbitrary(args...).Build()).ToAny()
		return texts(reply), err
	}
}

// texts returns the strings in a reply.
func texts(reply any) (all []string) {
	parts, ok := reply.([]any)
	if !ok {
		return []string{fmt.Sprint(reply)}
	}
	for _, p := range parts {
		all = append(all, fmt.Sprint(p))
	}
	return all
}

// info sends an INFO command and parses the reply, in which each field is a line KEY:VALUE.
func info(ctx context.Context, n node, command ...string) (map[string]string, error) {
	reply, err := n.do(ctx, command...)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	text := strings.TrimPrefix(reply[0], "txt:") // valkey-go leaves it on verbatim strings (RESP3)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields, nil
}

// checkRedis checks the servers themselves: their versions, settings and replicas.
func (d *doctor) checkRedis(ctx context.Context) {
	nodes, err := d.nodes(ctx)
	if err != nil {
		d.fail("cluster", "does the user have +cluster?",
			"the servers of the cluster can't be listed: %v", err)
		return
	}
	for _, n := range nodes {
		ctx, cancel := d.bounded(ctx)
		d.checkNode(ctx, n)
		cancel()
	}
}

// checkNode checks one server. It skips the replicas of a cluster, because checkReplicas
// checks them when it checks their masters.
func (d *doctor) checkNode(ctx context.Context, n node) {
	fields, err := info(ctx, n, "INFO")
	if err != nil {
		d.warn("server", "allow +info, for this check at least",
			"%sversion, replicas and eviction are unknown: %v", n.which, err)
	} else if d.clustered() && fields["role"] == "slave" {
		return
	} else {
		d.checkVersion(n, fields)
	}
	d.checkScripts(ctx, n)
	if fields != nil {
		d.checkReplicas(ctx, n, fields)
		d.checkMemory(n, fields)
	}
	d.checkClock(ctx, n)
	if d.clustered() {
		d.checkSlots(ctx, n)
	}
}

func (d *doctor) clustered() bool {
	_, cluster := d.redis.(*redis.ClusterClient)
	return cluster || d.valkey != nil && d.valkey.Mode() == valkey.ClientModeCluster
}

// checkVersion checks the server's product and version.
func (d *doctor) checkVersion(n node, fields map[string]string) {
	product, version := "Redis", fields["redis_version"]
	if v := fields["valkey_version"]; v != "" {
		product, version = "Valkey", v
	}
	mode := cmp.Or(fields["redis_mode"], fields["server_mode"])
	what := fmt.Sprintf("%s%s %s, %s", n.which, product, version, mode)
	major, _ := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	switch {
	case mode == "sentinel":
		d.fail("server", "use redis+sentinel://…?master_name=NAME",
			"%s: this is a sentinel, which has no locks", what)
	case fields["role"] == "slave":
		d.fail("server", "use the address of the master or of the sentinels",
			"%s: this is a replica, which refuses writes, or loses them", what)
	case mode == "cluster" && !d.clustered():
		d.fail("server", "use redis+cluster://",
			"%s: this is one server of a cluster, which has only some of the locks", what)
	case major > 0 && major < 5:
		d.warn("server", "use version 5 or later", "%s: only plain locks work", what)
	default:
		d.ok("server", "%s", what)
	}
}

// checkScripts checks that this user may run scripts with EVAL and EVALSHA.
func (d *doctor) checkScripts(ctx context.Context, n node) {
	const digest = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db" // SHA-1 of the script below
	_, err := n.do(ctx, "EVAL", "return 1", "0")
	if err == nil {
		_, err = n.do(ctx, "EVALSHA", digest, "0")
	}
	if err != nil {
		d.fail("scripts", "allow +eval and +evalsha: each step of a lock is a script", "%s%v",
			n.which, err)
		return
	}
	d.ok("scripts", "%sEVAL and EVALSHA work", n.which)
}

// checkReplicas checks whether a lock can be lost in a failover.
func (d *doctor) checkReplicas(ctx context.Context, n node, fields map[string]string) {
	count, _ := strconv.Atoi(fields["connected_slaves"])
	if count == 0 {
		d.ok("replicas", "%snone", n.which)
		return
	}
	_, minimum := fields["min_slaves_good_slaves"]
	wait := min(500*time.Millisecond, d.timeout/2)
	acked, err := n.do(ctx, "WAIT", strconv.Itoa(count), strconv.FormatInt(wait.Milliseconds(), 10))
	switch {
	case err != nil:
		d.warn("replicas", "WithReplicas needs +wait; nothing else does", "%s%d replicas; WAIT: %v",
			n.which, count, err)
	case acked[0] != strconv.Itoa(count):
		d.warn("replicas", "look at their lag: a failover now would lose locks",
			"%s%s of %d replicas confirmed the last write within %v", n.which, acked[0], count,
			wait)
	case !minimum:
		d.warn("replicas", "set min-replicas-to-write, or use WithReplicas; where two must "+
			"never be inside, use fenced locks",
			"%s%d replicas, and the server accepts writes without them: a failover may lose "+
				"locks that were just acquired", n.which, count)
	default:
		d.ok("replicas", "%s%d, and min-replicas-to-write is set", n.which, count)
	}
}

// checkMemory checks whether the server's settings let it evict the keys of locks.
func (d *doctor) checkMemory(n node, fields map[string]string) {
	policy := fields["maxmemory_policy"]
	limit, _ := strconv.ParseFloat(fields["maxmemory"], 64)
	used, _ := strconv.ParseFloat(fields["used_memory"], 64)
	const todo = "set maxmemory-policy noeviction: an evicted lock is free, and a second client " +
		"gets in"
	switch {
	case policy == "":
		d.warn("eviction", "set maxmemory-policy noeviction",
			"%sthe server doesn't tell its maxmemory-policy", n.which)
	case policy != "noeviction" && limit > 0:
		d.fail("eviction", todo, "%smaxmemory-policy is %s", n.which, policy)
	case policy != "noeviction":
		d.warn("eviction", todo, "%smaxmemory-policy is %s, though maxmemory isn't set", n.which,
			policy)
	case limit > 0 && used > 0.9*limit:
		d.warn("eviction", "make room: a full server grants no locks",
			"%snoeviction, but %.0f %% of the memory are used", n.which, 100*used/limit)
	default:
		d.ok("eviction", "%snoeviction", n.which)
	}
}

// farOff is the clock difference above which the doctor warns.
const farOff = time.Second

// checkClock compares the server's clock with this machine's.
func (d *doctor) checkClock(ctx context.Context, n node) {
	begun := time.Now()
	reply, err := n.do(ctx, "TIME")
	took := time.Since(begun)
	if err == nil && len(reply) != 2 {
		err = errors.New("TIME: the reply isn't a time")
	}
	if err != nil {
		d.warn("clock", "allow +time: all kinds except plain locks need it", "%s%v", n.which, err)
		return
	}
	sec, _ := strconv.ParseInt(reply[0], 10, 64)
	usec, _ := strconv.ParseInt(reply[1], 10, 64)
	off := time.Unix(sec, usec*1000).Sub(begun.Add(took / 2))
	if off.Abs() > farOff+took/2 {
		d.warn("clock", "correct the clocks slowly (NTP): a jump ends leases early. After a "+
			"failover the new master's clock counts",
			"%sthe clock differs from this machine's by %v", n.which, off.Round(time.Millisecond))
		return
	}
	d.ok("clock", "%sdiffers from this machine's by %v", n.which, off.Round(time.Millisecond))
}

// checkSlots checks that every hash slot of the cluster is served.
func (d *doctor) checkSlots(ctx context.Context, n node) {
	fields, err := info(ctx, n, "CLUSTER", "INFO")
	switch state, slots := fields["cluster_state"], fields["cluster_slots_ok"]; {
	case err != nil:
		d.warn("cluster", "allow +cluster|info", "%sthe state of the slots is unknown: %v",
			n.which, err)
	case state != "ok" || slots != "16384":
		d.fail("cluster", "look with: redis-cli --cluster check",
			"%sthe cluster's state is %s, and %s of 16384 slots are served", n.which, state, slots)
	default:
		d.ok("cluster", "%sall slots are served", n.which)
	}
}

// removeRedis deletes the keys that fenced locks and semaphores leave behind.
func (d *doctor) removeRedis(ctx context.Context, name string) error {
	key := d.prefix + name
	tagged := "{" + key + "}"
	if strings.Contains(key, "{") {
		tagged = key // as Redisson names its keys
	}
	for _, k := range []string{key, "redisson_lock_token:" + tagged, tagged + ":timeout"} {
		var err error
		if d.redis != nil {
			err = d.redis.Del(ctx, k).Err()
		} else {
			err = d.valkey.Do(ctx, d.valkey.B().Del().Key(k).Build()).Error()
		}
		if err != nil && !strings.HasPrefix(err.Error(), "NOPERM") {
			// NOPERM is ignored: the probe can't have written a key that this user isn't allowed to
			// access.
			return err
		}
	}
	return nil
}
