package recipes

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A mailbox is where messages arrive.
type mailbox struct {
	mu  sync.Mutex
	got []int64
}

func (m *mailbox) put(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got = append(m.got, id)
}

// begins says whether these have arrived first.
func (m *mailbox) begins(ids ...int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.got) >= len(ids) && slices.Equal(m.got[:len(ids)], ids)
}

type draining func(o *outbox, ctx context.Context, client *dlock.Client) error

// drainTwice has one replica drain an outbox of three messages, which stands still while it sends
// the first, and loses its lock. Another drains meanwhile. When it has sent three messages, or
// waits for the first replica, that goes on.
func drainTwice(t *testing.T, drain draining) *mailbox {
	c := newCellar(t)
	c.SQL(`CREATE TABLE outbox (id bigserial PRIMARY KEY, message text NOT NULL);
		INSERT INTO outbox (message) VALUES ('a'), ('b'), ('c')`)
	var m mailbox
	begin := func(send func(ctx context.Context, id int64, message string) error) {
		pool, locks, client := c.replica()
		o := &outbox{pool, locks, send}
		ctx, stop := context.WithCancel(t.Context())
		var drains sync.WaitGroup
		t.Cleanup(func() { stop(); drains.Wait() })
		drains.Go(func() { _ = drain(o, ctx, client) })
	}
	sending, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	begin(func(_ context.Context, id int64, _ string) error {
		once.Do(func() {
			close(sending)
			<-goOn
		})
		m.put(id)
		return nil
	})
	<-sending
	c.force("lock:outbox")
	begin(func(_ context.Context, id int64, _ string) error {
		m.put(id)
		return nil
	})
	testservers.Until(t, "the other has sent all, or waits", func() bool {
		return m.begins(1, 2, 3) || c.blocked() == "1"
	})
	close(goOn)
	empty := func() bool { return c.SQL(`SELECT count(*) FROM outbox`) == "0" }
	testservers.Until(t, "all is sent", empty)
	c.SQL(`INSERT INTO outbox (message) VALUES ('d')`)
	testservers.Until(t, "the next, too", empty)
	return &m
}

func TestWhoDrainsWithoutGuardSendsLate(t *testing.T) {
	t.Parallel()
	m := drainTwice(t, (*outbox).drainWrong)
	testservers.Until(t, "the first message comes late, again", func() bool {
		return m.begins(1, 2, 3, 1) || m.begins(1, 2, 3, 4, 1)
	})
}

func TestAnOutboxIsDrainedInOrder(t *testing.T) {
	t.Parallel()
	if m := drainTwice(t, (*outbox).drain); !slices.Equal(m.got, []int64{1, 2, 3, 4}) {
		t.Errorf("it has sent %v", m.got)
	}
}
