package redisbackend_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

// decorated is a store that wraps another, and lets its capabilities pass.
type decorated struct{ backend.Backend }

func (d decorated) Open() backend.Session { return decoratedSession{d.Backend.Open()} }

type decoratedSession struct{ backend.Session }

func (d decoratedSession) Capabilities() backend.Capabilities {
	return backend.CapabilitiesOf(d.Session)
}

// A Redis that is wrapped sends what the bare one does, as many commands at a time, where locks are
// taken together, asked about and given back. That waiters are woken and leases renewed through a
// decorator, too, is seen in each case of the contract suite, whose faults are one.
func TestADecoratorIsAsTheBareStore(t *testing.T) {
	server := testservers.Redis(t)
	var bare, wrapped []string
	for _, course := range []struct {
		sent *[]string
		wrap func(backend.Backend) backend.Backend
	}{
		{&bare, func(b backend.Backend) backend.Backend { return b }},
		{&wrapped, func(b backend.Backend) backend.Backend { return decorated{b} }},
	} {
		var mu sync.Mutex
		var sent []string // the names of commands, those that went together on one line
		client := connect(t, server.Addr)
		client.AddHook(hooks{around: func(
			_ context.Context, cmds []redis.Cmder, send func() error,
		) error {
			names := make([]string, len(cmds))
			for i, cmd := range cmds {
				names[i] = cmd.Name()
			}
			mu.Lock()
			if line := strings.Join(names, " "); strings.HasPrefix(line, "eval") {
				// and no new connection's
				sent = append(sent, line)
			}
			mu.Unlock()
			return send()
		}})
		locks := dlock.New(course.wrap(redisbackend.New(client)), dlock.WithLease(time.Hour))
		var all []*dlock.Locker
		for i := range 8 {
			all = append(all, locks.Locker(fmt.Sprint("shelf ", i)))
		}
		warm := locks.Locker("warm")
		warm.Lock() // loads the scripts
		if _, err := warm.Holder(t.Context()); err != nil {
			t.Fatal(err)
		}
		warm.Unlock()
		mu.Lock()
		sent = nil
		mu.Unlock()
		several := dlock.All(all...)
		h, err := several.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if holder, err := all[3].Holder(t.Context()); err != nil || holder.ID == "" {
			t.Errorf("the holder is %+v, %v", holder, err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := locks.Close(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		*course.sent = slices.Clone(sent)
		mu.Unlock()
	}
	if !slices.Equal(bare, wrapped) {
		t.Errorf("the bare one sends\n%q\nand wrapped it sends\n%q", bare, wrapped)
	}
	together := func(line string) bool { return len(strings.Fields(line)) >= 8 }
	if !slices.ContainsFunc(wrapped, together) {
		t.Errorf("nothing goes together: %q", wrapped)
	}
}
