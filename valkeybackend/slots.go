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

// slots knows which node of a cluster has which slot. valkey-go knows it, too, but does not tell.
type slots struct {
	client valkey.Client
	known  atomic.Pointer[owners] // nil if they must be asked for
	asking chan struct{}          // full while somebody asks
}

func newSlots(client valkey.Client) *slots {
	return &slots{client: client, asking: make(chan struct{}, 1)}
}

// owners are the addresses of the masters, at some time.
type owners struct {
	asked  time.Time
	bySlot [redisson.Slots]string // empty where there is none
}

// locate returns the node that has a slot.
func (s *slots) locate(ctx context.Context, slot uint16) (addr string, node valkey.Client, err error) {
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
		return "", nil, &backend.Error{Kind: backend.Retry, Err: fmt.Errorf("valkey: no node is known that has slot %d", slot)}
	}
	return addr, node, nil
}

// masters returns the nodes that have slots, in ascending order. It asks: they may be others now.
func (s *slots) masters(ctx context.Context) ([]string, error) {
	all, err := s.ask(ctx)
	if err != nil {
		return nil, &backend.Error{Kind: backend.Retry, Err: err}
	}
	s.known.Store(all)
	addrs := slices.Sorted(slices.Values(all.bySlot[:]))
	addrs = slices.DeleteFunc(slices.Compact(addrs), func(addr string) bool { return addr == "" })
	if len(addrs) == 0 {
		return nil, &backend.Error{Kind: backend.Retry, Err: errors.New("valkey: no master is known")}
	}
	return addrs, nil
}

// forget is called when what is known may be out of date.
func (s *slots) forget() { s.known.Store(nil) }

// near returns what the slots of one node have in common, as far as it is known which these are.
func (s *slots) near(slot uint16) string {
	if all := s.known.Load(); all != nil && all.bySlot[slot] != "" {
		return all.bySlot[slot]
	}
	return strconv.Itoa(int(slot))
}

// refresh asks again if that is long ago.
func (s *slots) refresh(ctx context.Context) {
	if all := s.known.Load(); all == nil || time.Since(all.asked) > time.Minute {
		s.known.CompareAndSwap(all, nil)
		_, _ = s.learn(ctx) // or the next time
	}
}

// learn asks, unless somebody else has just done so.
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

// witnesses is how many nodes are asked at once, since one may hang.
const witnesses = 3

// ask asks some nodes and returns the first answer.
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

// parseOwners reads the reply to CLUSTER SLOTS. A node that doesn't know its own host is called what
// the client calls it.
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
