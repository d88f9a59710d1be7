package pubsub

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/backend"
)

// A watch says how often the session itself listens only where that is sure.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(new(single), Options{})
		defer s.Close()
		var sub backend.Subscription
		subscribe := func() {
			var err error
			if sub, err = s.Subscribe(t.Context(), "channel", func(backend.Wakeup) {}); err != nil {
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
	s := New(new(single), Options{})
	defer s.Close()
	s.Watch("channel")()
	if len(s.channels) != 0 {
		t.Errorf("%d channels are left", len(s.channels))
	}
}
