package pubsub

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A subscriber is told once that a connection broke, and why, however often reconnecting fails, and
// once that it is subscribed again. One that never was subscribed, or isn't any more, is told
// nothing.
func TestChanges(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		a, server := standing(t, c, s, "a")
		second := subscribe(t, s, "a")
		second.stands(t)
		left := subscribe(t, s, "a")
		left.stands(t)
		left.sub.Close()
		waits := subscribe(t, s, "b")
		server.hears(t, Subscribe, "b").answer <- reply{err: errBroken}
		<-waits.done
		a.told(t, errBroken)
		second.told(t, errBroken)
		for range 3 {
			server = <-c.conns
			server.hears(t, Subscribe, "a").answer <- reply{err: errRefused}
			<-server.closed
		}
		a.told(t)
		server = <-c.conns
		told := server.hears(t, Subscribe, "a")
		a.told(t)
		server.confirm(told)
		told.answer <- reply{}
		a.told(t, nil)
		second.told(t, nil)
		late := subscribe(t, s, "a")
		late.stands(t)

		close(server.lost)
		a.told(t, errLost)
		late.told(t, errLost)
		second.sub.Close()
		server = <-c.conns
		server.does(t, Subscribe, "a")
		a.told(t, nil)
		late.told(t, nil)
		second.told(t, errLost) // while it was subscribed
		left.told(t)
		waits.told(t)

		s.Close()
		<-server.closed
		a.told(t)
	})
}

// A server that ends a subscription unasked breaks it, too, until another has the channel.
func TestChangesOfOneChannel(t *testing.T) {
	play(t, Options{Sharded: true, Spread: true}, func(t *testing.T, c *stage, s *Subscriber) {
		c.put("one", "a", "b")
		a, one := standing(t, c, s, "a")
		b := subscribe(t, s, "b")
		one.does(t, Subscribe, "b")
		b.stands(t)
		c.put("two", "a")
		one.Unsubscribed("a")
		a.told(t, errEnded)
		two := <-c.conns
		two.refuses(t, ErrMoved, Subscribe, "a") // not yet
		two.does(t, Subscribe, "a")
		a.told(t, nil)
		b.told(t)
	})
}

// Changes are told in their order, though one listener that is slow holds up the others. They
// aren't told to one that has left meanwhile.
func TestChangesInOrder(t *testing.T) {
	play(t, Options{Sharded: true, Spread: true}, func(t *testing.T, c *stage, s *Subscriber) {
		c.put("one", "a")
		var mu sync.Mutex
		var told []error
		want := func(want ...error) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("told %v, want %v", told, want)
			}
		}
		done := make(chan struct{})
		var sub backend.Subscription
		go func() {
			defer close(done)
			var err error
			sub, err = s.Subscribe(t.Context(), "a", decode, func(Meaning) {}, func(broken error) {
				if broken != nil {
					time.Sleep(10 * time.Second)
				}
				mu.Lock()
				defer mu.Unlock()
				told = append(told, broken)
			})
			if err != nil {
				t.Error(err)
			}
		}()
		one := <-c.conns
		one.does(t, Subscribe, "a")
		<-done
		move := func(from *actor, to string) {
			c.put(to, "a")
			go from.Unsubscribed("a")
			synctest.Wait()
			time.Sleep(maxPause)
		}
		move(one, "two")
		two := <-c.conns
		two.does(t, Subscribe, "a")
		want()
		time.Sleep(10 * time.Second)
		want(errEnded, nil)

		move(two, "one")
		one.does(t, Subscribe, "a")
		synctest.Wait()
		sub.Close()
		one.does(t, Unsubscribe, "a")
		time.Sleep(20 * time.Second)
		want(errEnded, nil, errEnded) // the last is of the move that was under way
	})
}
