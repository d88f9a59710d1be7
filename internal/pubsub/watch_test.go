package pubsub

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/backend"
)

// A watch says how often the session itself listens only where that is sure.
func TestWatch(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		defer close(c.conns)
		go func() {
			for server := range c.conns {
				server.obeys(0)
			}
		}()
		var sub backend.Subscription
		subscribe := func() {
			var err error
			if sub, err = s.Subscribe(t.Context(), "channel", decode, func(Meaning) {},
				nil); err != nil {
				t.Fatal(err)
			}
		}
		unsubscribe := func() { sub.Close(); synctest.Wait() }
		for _, c := range []struct {
			what      string
			meanwhile func()
			want      string
		}{
			{"nobody listens", func() {}, "0 0"},
			{"somebody begins", subscribe, "0 1"},
			{"somebody listens", func() {}, "1 1"},
			{"somebody ends, and begins again", func() { unsubscribe(); subscribe() }, "0 1"},
			{"somebody ends", unsubscribe, "0 1"},
			{"somebody begins, and ends", func() { subscribe(); unsubscribe() }, "0 1"},
			{"nobody listens any more", func() {}, "0 0"},
			{"the session is closed", func() { subscribe(); s.Close() }, "0 1"},
			{"the session was closed", func() {}, "0 1"},
		} {
			own, beside := s.Watch("channel"), s.Watch("channel")
			c.meanwhile()
			beside()
			least, most := own()
			if got := fmt.Sprint(least, " ", most); got != c.want {
				t.Errorf("%s: %s, want %s", c.what, got, c.want)
			}
		}
	})
}

// Nothing is left of a channel that was only watched.
func TestWatchEnds(t *testing.T) {
	s := New(newStage(), Options{})
	defer s.Close()
	s.Watch("channel")()
	if len(s.channels) != 0 {
		t.Errorf("%d channels are left", len(s.channels))
	}
}

// A channel that is watched while its server is forgotten is as new afterwards.
func TestWatchOfForgottenServer(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		p, server := standing(t, c, s, "a")
		p.sub.Close()
		server.refuses(t, errRefused, Unsubscribe, "a")
		watch := s.Watch("a")
		<-server.closed // nobody needs it
		if least, most := watch(); least != 0 || most != 1 {
			t.Errorf("%d to %d listen, want 0 to 1", least, most)
		}
		watch = s.Watch("a")
		p, server = standing(t, c, s, "a")
		watch()
		watch = s.Watch("a")
		p.sub.Close()
		server.does(t, Unsubscribe, "a")
		<-server.closed
		p, server = standing(t, c, s, "a") // although it was watched all the time
		watch()
		server.Published("a", "0")
		p.woken(t, Freed)
	})
}

func TestListens(t *testing.T) {
	play(t, Options{}, func(t *testing.T, c *stage, s *Subscriber) {
		want := func(when string, want bool) {
			t.Helper()
			if s.Listens("a") != want || s.Listens("b") {
				t.Errorf("%s: %v", when, !want)
			}
		}
		want("nobody listens", false)
		s.Watch("a")()
		want("somebody has looked", false)
		p := subscribe(t, s, "a")
		server := <-c.conns
		want("somebody is about to", true)
		server.does(t, Subscribe, "a")
		p.stands(t)
		want("somebody listens", true)
		p.sub.Close()
		want("nobody listens any more", false)
		server.does(t, Unsubscribe, "a")
	})
}
