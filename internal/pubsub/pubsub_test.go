package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errBroken  = &backend.Error{Kind: backend.Retry, Err: errors.New("broken")}
	errRefused = &backend.Error{Kind: backend.Refused, Err: errors.New("refused")}
)

// play runs a test of a subscriber in virtual time.
func play(t *testing.T, options Options, test func(t *testing.T, c *stage, s *Subscriber)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newStage()
		s := New(c, options)
		defer s.Close()
		test(t, c, s)
	})
}

// standing returns a party that is subscribed, and the connection that it is over.
func standing(t *testing.T, c *stage, s *Subscriber, channel string) (*party, *actor) {
	t.Helper()
	p := subscribe(t, s, channel)
	server := <-c.conns
	server.does(t, Subscribe, channel)
	p.stands(t)
	return p, server
}

// Messages of a connection that is being closed wake nobody.
func TestClosed(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		p, server := standing(t, c, s, "a")
		server.Published("a", "0")
		p.woken(t, Freed)
		s.Close()
		server.Published("a", "0")
		p.woken(t)
		<-server.closed
		late := subscribe(t, s, "b")
		if <-late.done; backend.KindOf(late.err) != backend.Refused {
			t.Errorf("subscribe after Close: %v", late.err)
		}
	})
}

// A message reaches the subscribers of its channel, with its meaning.
func TestMessages(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		a, server := standing(t, c, s, "a")
		b := subscribe(t, s, "b")
		told := server.hears(t, Subscribe, "b")
		server.Published("b", "0") // before it is confirmed
		server.confirm(told)
		told.answer <- reply{}
		b.stands(t)
		b.woken(t)
		server.Published("a", "0")
		a.woken(t, Freed)
		server.Published("a", "1")
		a.woken(t, Kept)
		server.Published("a", "nonsense")
		server.Published("nobody's", "0")
		a.woken(t)
		b.woken(t)
	})
}

// Each subscriber hears each message once, however many there are. After a break it is told that it
// may have missed some.
func TestListen(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		var heard []string
		again := make([]int, 2)
		hear := func(message string) { heard = append(heard, message) }
		var subs []backend.Subscription
		var running sync.WaitGroup
		listen := func(i int) {
			running.Go(func() {
				sub, err := s.Listen(t.Context(), "a", hear, func() { again[i]++ }, nil)
				if err != nil {
					t.Error(err)
				}
				subs = append(subs, sub)
			})
		}
		listen(0)
		server := <-c.conns
		told := server.hears(t, Subscribe, "a")
		server.Published("a", "too early")
		server.confirm(told)
		told.answer <- reply{}
		running.Wait()
		listen(1)
		running.Wait()
		for _, message := range []string{"one", "", "0"} {
			server.Published("a", message)
		}
		synctest.Wait()
		if !slices.Equal(heard, []string{"one", "", "0"}) || again[0]+again[1] != 0 {
			t.Errorf("heard %q, again %v", heard, again)
		}
		close(server.lost)
		server = <-c.conns
		server.does(t, Subscribe, "a")
		synctest.Wait()
		if !slices.Equal(again, []int{1, 1}) {
			t.Errorf("told of a break %v times", again)
		}
		for _, sub := range subs {
			sub.Close()
		}
		server.does(t, Unsubscribe, "a")
		server.Published("a", "too late")
		if synctest.Wait(); len(heard) != 3 {
			t.Errorf("heard %q", heard)
		}
	})
}

// Subscribers of one name are independent: one that leaves doesn't affect the others. The server is
// told when the last has left.
func TestSameName(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		first, server := standing(t, c, s, "a")
		second := subscribe(t, s, "a")
		second.stands(t) // at once: the server has confirmed it
		server.hearsNothing(t)
		server.Published("a", "0")
		first.woken(t, Freed)
		second.woken(t, Freed)

		first.sub.Close()
		server.hearsNothing(t)
		server.Published("a", "0")
		first.woken(t)
		second.woken(t, Freed)

		first.sub.Close() // again
		second.sub.Close()
		server.does(t, Unsubscribe, "a")
		server.Published("a", "0")
		second.woken(t)
	})
}

// A subscriber that comes while the server is being told waits for the confirmation after that.
// Subscribers that exist when a subscription is made anew are woken: they may have missed a
// message.
func TestComesBack(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		first, server := standing(t, c, s, "a")
		first.sub.Close()
		told := server.hears(t, Unsubscribe, "a")
		second := subscribe(t, s, "a")
		second.waits(t)
		server.Subscribed("a") // late: that of the first time, again
		second.waits(t)
		server.Published("a", "0")
		server.confirm(told)
		told.answer <- reply{}
		second.waits(t)
		server.does(t, Subscribe, "a")
		second.stands(t)
		second.woken(t)
		server.Subscribed("a") // again
		second.woken(t)
		server.Published("a", "0")
		second.woken(t, Freed)
	})
}

// The confirmation may come after the answer. A subscriber that has left meanwhile is not kept.
func TestConfirmedLate(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		p := subscribe(t, s, "a")
		server := <-c.conns
		told := server.hears(t, Subscribe, "a")
		told.answer <- reply{}
		p.waits(t)
		server.confirm(told)
		p.stands(t)
		p.woken(t)
		p.sub.Close()
		told = server.hears(t, Unsubscribe, "a")
		told.answer <- reply{}
		again := subscribe(t, s, "a")
		again.waits(t)
		server.hearsNothing(t)
		server.confirm(told)
		server.does(t, Subscribe, "a")
		again.stands(t)
	})
}

// A connection that breaks is replaced soon, however often that happens. Subscribers are woken when
// they are subscribed again. Messages of the old connection count for nothing.
func TestReconnects(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		a, server := standing(t, c, s, "a")
		b := subscribe(t, s, "b")
		server.does(t, Subscribe, "b")
		b.stands(t)
		for range 20 {
			old, broken := server, time.Now()
			old.lost <- errBroken
			<-old.closed
			if c.reloaded() == 0 {
				t.Error("a connection broke, and the client was not told that it may have to " +
					"look for servers")
			}
			old.Published("a", "0")
			server = <-c.conns
			if d := time.Since(broken); d > minPause {
				t.Errorf("the next connection came after %v", d)
			}
			told := server.hears(t, Subscribe, "a", "b")
			old.Subscribed("a")
			old.Published("b", "0")
			a.woken(t)
			b.woken(t)
			server.confirm(told)
			told.answer <- reply{}
			a.woken(t, Missed)
			b.woken(t, Missed)
			old.Published("a", "0")
			old.Unsubscribed("a")
			a.woken(t)
			server.hearsNothing(t)
			server.Published("a", "0")
			a.woken(t, Freed)
		}
	})
}

// A caller that waits to be subscribed when the connection breaks is told why. Callers that come
// before there may be another connection are told at once. Subscribers stay subscribed.
func TestNoServer(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		a, server := standing(t, c, s, "a")
		b := subscribe(t, s, "b")
		server.hears(t, Subscribe, "b").answer <- reply{err: errBroken}
		if <-b.done; b.err != errBroken {
			t.Errorf("subscribe: %v", b.err)
		}
		for range 5 { // in vain
			broken := <-c.conns
			broken.hears(t, Subscribe, "a").answer <- reply{err: errBroken}
			<-broken.closed
			begin := time.Now()
			late := subscribe(t, s, "late")
			if <-late.done; late.err != errBroken || time.Since(begin) > 0 {
				t.Errorf("subscribe while there is no server: %v after %v", late.err,
					time.Since(begin))
			}
		}
		a.woken(t)
		server = <-c.conns
		server.does(t, Subscribe, "a")
		a.woken(t, Missed)
		late := subscribe(t, s, "late")
		server.does(t, Subscribe, "late")
		late.stands(t)
	})
}

// While there is no server nobody asks for it again and again.
func TestPatience(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		_, server := standing(t, c, s, "a")
		server.lost <- errBroken
		begin, conns := time.Now(), 0
		for time.Since(begin) < time.Minute {
			broken := <-c.conns
			conns++
			broken.hears(t, Subscribe, "a").answer <- reply{err: errBroken}
		}
		if conns > 80 { // 60 / (maxPause/2), and some at first
			t.Errorf("%d connections in a minute", conns)
		}
	})
}

// A refusal ends the waiting calls of Subscribe. If many channels share a refused command, each is
// tried alone first. A refusal doesn't outlive the connection, and later calls ask again.
func TestRefused(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		good, server := standing(t, c, s, "good")
		told := make(chan line)
		first := subscribe(t, s, "first")
		go func() { told <- server.hears(t, Subscribe, "first") }()
		l := <-told
		bad, other := subscribe(t, s, "bad"), subscribe(t, s, "other") // together, then
		synctest.Wait()
		server.confirm(l)
		l.answer <- reply{}
		first.stands(t)

		server.refuses(t, errRefused, Subscribe, "bad", "other")
		bad.waits(t)
		other.waits(t)
		l = server.hears(t, Subscribe, "bad", "other")
		if len(l.orders) != 2 {
			t.Fatalf("told %q, want each alone", l.orders)
		}
		refusals := make([]error, 2)
		for i, channels := range l.orders {
			if channels[0] == "bad" {
				refusals[i] = errRefused
			} else {
				server.Subscribed("other")
			}
		}
		l.answer <- reply{refusals: refusals}
		other.stands(t)
		if <-bad.done; bad.err != errRefused {
			t.Errorf("subscribe: %v", bad.err)
		}

		bad = subscribe(t, s, "bad")
		server.does(t, Subscribe, "bad") // now it may
		bad.stands(t)

		// A subscriber that the next connection refuses is woken, for it hears no more.
		server.lost <- errBroken
		server = <-c.conns
		l = server.hears(t, Subscribe, "bad", "first", "good", "other")
		if len(l.orders) != 1 {
			t.Errorf("told %q, want all together: it is another connection", l.orders)
		}
		l.answer <- reply{refusals: []error{errRefused}}
		l = server.hears(t, Subscribe, "bad", "first", "good", "other")
		refusals = make([]error, 4)
		for i, channels := range l.orders {
			if channels[0] == "bad" {
				refusals[i] = errRefused
			} else {
				server.Subscribed(channels[0])
			}
		}
		l.answer <- reply{refusals: refusals}
		good.woken(t, Missed)
		bad.woken(t, Missed)

		// The refused one is subscribed again when another subscription to its channel succeeds …
		server.hearsNothing(t)
		another := subscribe(t, s, "bad")
		server.does(t, Subscribe, "bad")
		another.stands(t)
		another.woken(t)
		bad.woken(t, Missed)

		// The same goes for another connection.
		server.lost <- errBroken
		server = <-c.conns
		server.refuses(t, errRefused, Subscribe, "bad", "first", "good", "other")
		server.refuses(t, errRefused, Subscribe, "bad", "first", "good", "other")
		bad.woken(t, Missed)
		server.hearsNothing(t)
		server.lost <- errBroken
		server = <-c.conns
		server.does(t, Subscribe, "bad", "first", "good", "other")
		bad.woken(t, Missed)
		another.woken(t, Missed, Missed)
	})
}

// A server that refuses to unsubscribe is told so once, and left with what it does.
func TestStuck(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		p, server := standing(t, c, s, "a")
		p.sub.Close()
		server.refuses(t, errRefused, Unsubscribe, "a")
		server.hearsNothing(t)
		server.Published("a", "0")
		p = subscribe(t, s, "a")
		p.stands(t) // it still is
		server.hearsNothing(t)
		server.Published("a", "0")
		p.woken(t, Freed)

		server.lost <- errBroken
		server = <-c.conns
		server.does(t, Subscribe, "a")
		p.sub.Close()
		server.does(t, Unsubscribe, "a") // it may have changed its mind
		server.hearsNothing(t)
	})
}

// A subscription that a server would not end ends with the connection, some time after its last
// subscriber has left.
func TestStuckAndIdle(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		p, server := standing(t, c, s, "a")
		p.sub.Close()
		server.refuses(t, errRefused, Unsubscribe, "a")
		p = subscribe(t, s, "a")
		p.stands(t)
		time.Sleep(10 * maxIdle)
		server.Published("a", "0")
		p.woken(t, Freed)
		p.sub.Close() // the server isn't told
		<-server.closed
		_, server = standing(t, c, s, "a")
		server.hearsNothing(t)
	})
}

// A reply that says neither yes nor no for good ends the connection.
func TestRefusedForNow(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		a, server := standing(t, c, s, "a")
		b := subscribe(t, s, "b")
		server.refuses(t, errBroken, Subscribe, "b")
		if <-b.done; b.err != errBroken {
			t.Errorf("subscribe: %v", b.err)
		}
		<-server.closed
		(<-c.conns).does(t, Subscribe, "a")
		a.woken(t, Missed)
	})
}

// A connection that says nothing is asked from time to time.
func TestPings(t *testing.T) {
	play(t, Options{CheckEvery: 3 * time.Second}, func(t *testing.T, c *stage, s *Subscriber) {
		p, server := standing(t, c, s, "a")
		for range 3 {
			begin := time.Now()
			server.hears(t, Ping).answer <- reply{}
			if d := time.Since(begin); d != 3*time.Second {
				t.Errorf("asked after %v", d)
			}
		}
		server.refuses(t, errRefused, Ping) // an answer all the same
		server.hears(t, Ping).answer <- reply{err: errBroken}
		(<-c.conns).does(t, Subscribe, "a")
		p.woken(t, Missed)
	})
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		_, server := standing(t, c, s, "a")
		time.Sleep(time.Hour)
		server.hearsNothing(t)
	})
}

// However many names there are, they are told in as many round trips as a command's limit allows.
func TestTogether(t *testing.T) {
	for name, options := range map[string]Options{"plain": {}, "sharded": {Sharded: true}} {
		t.Run(name, func(t *testing.T) {
			play(t, options, func(t *testing.T, c *stage, s *Subscriber) {
				_, server := standing(t, c, s, "first")
				const away = 10 * time.Millisecond
				server.obeys(away)
				begin := time.Now()
				all := make([]*party, 2500)
				for i := range all {
					all[i] = subscribe(t, s, fmt.Sprint("name", i))
				}
				for _, p := range all {
					p.stands(t)
				}
				// One for those that came at first, and one for each thousand.
				if d := time.Since(begin); d > 4*away {
					t.Errorf("they stand after %v", d)
				}
				for _, p := range all {
					p.sub.Close()
				}
				time.Sleep(5 * away)
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.channels) != 1 {
					t.Errorf("%d channels are left, want one", len(s.channels))
				}
				if server.longest != maxOrder {
					t.Errorf("told about up to %d channels at once, want %d", server.longest,
						maxOrder)
				}
			})
		})
	}
}

// Sharded channels have a command each, plain ones share it.
func TestOrders(t *testing.T) {
	for sharded, want := range map[bool]int{false: 1, true: 2} {
		play(t, Options{Sharded: sharded}, func(t *testing.T, c *stage, s *Subscriber) {
			_, server := standing(t, c, s, "a")
			subscribe(t, s, "b")
			told := server.hears(t, Subscribe, "b")
			subscribe(t, s, "c")
			subscribe(t, s, "d")
			synctest.Wait()
			told.answer <- reply{}
			if told = server.hears(t, Subscribe, "c", "d"); len(told.orders) != want {
				t.Errorf("sharded %v: told %q", sharded, told.orders)
			}
		})
	}
}

// Requests to subscribe and requests to unsubscribe are sent separately.
func TestVerbs(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		a, server := standing(t, c, s, "a")
		subscribe(t, s, "b")
		told := server.hears(t, Subscribe, "b")
		a.sub.Close()
		d := subscribe(t, s, "d")
		synctest.Wait()
		told.answer <- reply{}
		for range 2 {
			l := <-server.lines
			if want := map[Verb]string{Subscribe: "d",
				Unsubscribe: "a"}[l.verb]; len(l.orders) != 1 ||
				!slices.Equal(l.orders[0], []string{want}) {
				t.Errorf("told to %s %q", l.verb, l.orders)
			}
			server.confirm(l)
			l.answer <- reply{}
		}
		d.stands(t)
	})
}

// Channels are each at the server that has it, and found again when they move.
func TestSpread(t *testing.T) {
	play(t, Options{Sharded: true, Spread: true}, func(t *testing.T, c *stage, s *Subscriber) {
		c.put("one", "a", "b")
		c.put("two", "c")
		a, one := standing(t, c, s, "a")
		b := subscribe(t, s, "b")
		one.does(t, Subscribe, "b")
		b.stands(t)
		other, two := standing(t, c, s, "c")
		if one.addr != "one" || two.addr != "two" {
			t.Fatalf("connected to %q and %q", one.addr, two.addr)
		}

		// The server says so unasked.
		c.put("two", "a")
		one.Unsubscribed("a")
		a.woken(t)
		two.does(t, Subscribe, "a")
		a.woken(t, Missed)
		one.Published("a", "0")
		a.woken(t)
		two.Published("a", "0")
		a.woken(t, Freed)

		// The client doesn't know yet.
		late := subscribe(t, s, "d")
		moved := <-c.conns
		c.put("one", "d")
		if moved.addr != "" {
			t.Fatalf("connected to %q", moved.addr)
		}
		c.reloaded()
		moved.refuses(t, ErrMoved, Subscribe, "d")
		one.does(t, Subscribe, "d")
		late.stands(t)
		if c.reloaded() == 0 {
			t.Error("the client was not told that it doesn't know")
		}

		// Nobody knows, for a while.
		one.lost <- errBroken
		c.mu.Lock()
		c.lost = errBroken
		c.mu.Unlock()
		<-one.closed
		time.Sleep(time.Minute)
		if len(c.conns) > 0 {
			t.Error("connected to a server that nobody knows")
		}
		c.mu.Lock()
		c.lost = nil
		c.mu.Unlock()
		c.put("two", "b", "d")
		two.obeys(0)
		time.Sleep(2 * maxPause)
		b.woken(t, Missed)
		late.woken(t, Missed)
		other.woken(t)
	})
}

// A server that nobody needs any more is forgotten after a while, whether it is there or not.
func TestServersAreForgotten(t *testing.T) {
	play(t, Options{Sharded: true, Spread: true}, func(t *testing.T, c *stage, s *Subscriber) {
		servers := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.servers)
		}
		c.put("stays", "stays")
		stays, server := standing(t, c, s, "stays")
		var gone []*actor
		for i := range 200 {
			name := fmt.Sprint(i)
			c.put(name, name) // each time another server
			p := subscribe(t, s, name)
			there := <-c.conns
			gone = append(gone, there)
			switch i % 4 {
			case 0:
				there.does(t, Subscribe, name)
				p.stands(t)
				p.sub.Close()
				there.does(t, Unsubscribe, name)
			case 1: // it breaks
				there.does(t, Subscribe, name)
				p.stands(t)
				p.sub.Close()
				there.does(t, Unsubscribe, name)
				there.lost <- errBroken
			case 2: // it can't be reached
				there.hears(t, Subscribe, name).answer <- reply{err: errBroken}
				<-p.done
			case 3: // it goes on sending
				there.does(t, Subscribe, name)
				p.stands(t)
				p.sub.Close()
				there.refuses(t, errRefused, Unsubscribe, name)
			}
		}
		if n := servers(); n != 201 {
			t.Errorf("%d servers are known, want all that were just needed", n)
		}
		time.Sleep(2 * maxIdle)
		if n := servers(); n != 1 {
			t.Errorf("%d servers are known, want one", n)
		}
		for _, there := range gone {
			<-there.closed
		}
		s.mu.Lock()
		if len(s.channels) != 1 {
			t.Errorf("%d channels are known, want one", len(s.channels))
		}
		s.mu.Unlock()

		server.Published("stays", "0")
		stays.woken(t, Freed)
		// One that was forgotten is needed again.
		p, _ := standing(t, c, s, "0")
		gone[0].Published("0", "0")
		p.woken(t)
	})
}

// A connection is kept while somebody comes now and then.
func TestConnectionIsKept(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		p, server := standing(t, c, s, "a")
		for range 10 {
			p.sub.Close()
			server.does(t, Unsubscribe, "a")
			time.Sleep(maxIdle - time.Second)
			p = subscribe(t, s, "a")
			server.does(t, Subscribe, "a")
			p.stands(t)
		}
		time.Sleep(10 * maxIdle)
		server.Published("a", "0")
		p.woken(t, Freed)
		p.sub.Close()
		server.does(t, Unsubscribe, "a")
		<-server.closed
	})
}

// A caller that leaves gets its context's error, and the others theirs.
func TestContext(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		left := make(chan error)
		go func() {
			_, err := s.Subscribe(ctx, "a", decode, func(Meaning) {
				t.Error("woken although it has left")
			}, nil)
			left <- err
		}()
		server := <-c.conns
		told := server.hears(t, Subscribe, "a")
		stays := subscribe(t, s, "a")
		if err := <-left; !errors.Is(err, context.DeadlineExceeded) ||
			backend.KindOf(err) != backend.Unknown {
			t.Errorf("subscribe: %v", err)
		}
		stays.waits(t)
		server.confirm(told)
		told.answer <- reply{}
		stays.stands(t)
		server.Published("a", "0")
		stays.woken(t, Freed)
	})
}
