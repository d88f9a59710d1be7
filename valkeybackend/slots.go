package valkeybackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// slots is a map of a cluster's slots to its nodes. valkey-go keeps such a map but doesn't export
// it.
type slots struct {
	client valkey.Client
	known  atomic.Pointer[owners] // nil if the cluster must be asked
	// asking is a semaphore. It is full while a call asks the cluster.
	asking chan struct{}
}

func newSlots(client valkey.Client) *slots {
	return &slots{client: client, asking: make(chan struct{}, 1)}
}

// owners holds the addresses of the masters. The field asked is the time of the request for these
// addresses.
type owners struct {
	asked  time.Time
	bySlot [redisson.Slots]string // empty if the slot has no master
}

// locate returns the address and the client of the node that serves a slot.
func (s *slots) locate(
	ctx context.Context, slot uint16,
) (addr string, node valkey.Client, err error) {
	all := s.known.Load()
	if all == nil {
		if all, err = s.learn(ctx); err != nil {
			return "", nil, &backend.Error{Kind: backend.Retry, Err: err}
		}
	}
	addr = all.bySlot[slot]
	node = s.client.Nodes()[addr]
	if node == nil {
		s.forget()
		return "", nil, &backend.Error{
			Kind: backend.Retry, Err: fmt.Errorf("valkey: no known node has slot %d", slot),
		}
	}
	return addr, node, nil
}

// masters returns the addresses of the nodes that serve slots, in ascending order. It always asks
// the cluster, since the nodes may have changed.
func (s *slots) masters(ctx context.Context) ([]string, error) {
	all, err := s.ask(ctx)
	if err != nil {
		return nil, &backend.Error{Kind: backend.Retry, Err: err}
	}
	s.known.Store(all)
	addrs := slices.Sorted(slices.Values(all.bySlot[:]))
	addrs = slices.DeleteFunc(slices.Compact(addrs), func(addr string) bool { return addr == "" })
	if len(addrs) == 0 {
		return nil, &backend.Error{
			Kind: backend.Retry, Err: errors.New("valkey: no master is known"),
		}
	}
	return addrs, nil
}

// forget drops the map, since it may be out of date.
func (s *slots) forget() { s.known.Store(nil) }

// near returns the address of the node that serves a slot or, if that isn't known, the slot's
// number.
func (s *slots) near(slot uint16) string {
	if all := s.known.Load(); all != nil && all.bySlot[slot] != "" {
		return all.bySlot[slot]
	}
	return strconv.Itoa(int(slot))
}

// refresh reloads the map if it is older than a minute.
func (s *slots) refresh(ctx context.Context) {
	if all := s.known.Load(); all == nil || time.Since(all.asked) > time.Minute {
		s.known.CompareAndSwap(all, nil)
		_, _ = s.learn(ctx) // after an error, the next refresh asks again
	}
}

// learn asks the cluster for its slots, unless a concurrent call has just done so.
func (s *slots) learn(ctx context.Context) (*owners, error) {
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if all := s.known.Load(); all != nil {
		return all, nil
	}
	all, err := s.ask(ctx)
	if err == nil {
		s.known.Store(all)
	}
	return all, err
}

// witnesses is the number of nodes that are asked for the slots concurrently. It is more than one,
// since a node may hang.
const witnesses = 3

// ask asks a few nodes for the slots and returns the first answer.
func (s *slots) ask(ctx context.Context) (*owners, error) {
	type answer struct {
		owners *owners
		err    error
	}
	ctx, done := share(ctx)
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers, asked := make(chan answer, witnesses), 0
	for addr, node := range s.client.Nodes() {
		go func() {
			reply, err := node.Do(ctx, s.client.B().ClusterSlots().Build()).ToAny()
			if err != nil {
				answers <- answer{nil, err}
				return
			}
			all, err := parseOwners(reply, addr)
			answers <- answer{all, err}
		}()
		if asked++; asked == witnesses {
			break
		}
	}
	err := errors.New("valkey: no node is known")
	for range asked {
		a := <-answers
		if a.err == nil {
			return a.owners, nil
		}
		err = a.err
	}
	return nil, err
}

// parseOwners reads the reply to CLUSTER SLOTS. A node that doesn't know its own host leaves the
// host empty. parseOwners then uses the host in asked, which is the address of the node that
// replied.
func parseOwners(reply any, asked string) (*owners, error) {
	all := owners{asked: time.Now()}
	ranges, _ := reply.([]any)
	for _, r := range ranges {
		// first slot, last slot, master, replicas
		fields, _ := r.([]any)
		if len(fields) < 3 {
			return nil, fmt.Errorf("unexpected reply to CLUSTER SLOTS: %.200q", fmt.Sprint(reply))
		}
		master, _ := fields[2].([]any)
		from, ok1 := fields[0].(int64)
		to, ok2 := fields[1].(int64)
		if !ok1 || !ok2 || from < 0 || to >= redisson.Slots || len(master) < 2 {
			return nil, fmt.Errorf("unexpected reply to CLUSTER SLOTS: %.200q", fmt.Sprint(reply))
		}
		host, _ := master[0].(string)
		if host == "" {
			host, _, _ = net.SplitHostPort(asked)
		}
		port, _ := master[1].(int64)
		addr := net.JoinHostPort(host, strconv.FormatInt(port, 10))
		for slot := from; slot <= to; slot++ {
			all.bySlot[slot] = addr
		}
	}
	return &all, nil
}
