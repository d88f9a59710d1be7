package redisson

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

func (f *fakeTransport) SendTogether(ctx context.Context, cmds ...Command) []Reply {
	replies := make([]Reply, len(cmds))
	for i, cmd := range cmds {
		replies[i] = f.Send(ctx, cmd)
	}
	return replies
}

// listener returns a subscriber that listens to the channel of the lock n.
func listener(t *testing.T) *pubsub.Subscriber {
	s := pubsub.New(silence{}, pubsub.Options{})
	go s.Subscribe(t.Context(), Channel("n"), Unlocked, func(pubsub.Meaning) {}, nil)
	synctest.Wait()
	return s
}

// silence is a server that never answers.
type silence struct{}

func (silence) Locate(context.Context, string) (pubsub.Server, error) {
	return pubsub.Server{Connect: func(*pubsub.Receiver) pubsub.Conn { return silence{} }}, nil
}
func (silence) Reload(context.Context) {}
func (silence) Kind(err error) error   { return err }
func (silence) Lost() <-chan error     { return nil }
func (silence) Close()                 {}

func (silence) Tell(ctx context.Context, _ pubsub.Verb, _ [][]string) ([]error, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Who waits for a lock looks with an attempt who has it, now and then, and so knows how many of
// those who wait are Redisson's. Nobody looks who wasn't refused.
func TestStrangers(t *testing.T) {
	const java, ours, own = "559cc9df-bad8-4f6c-86a4-ffa51b7f1c36:41", "host/1/ABC:7", "host/2/DEF:9"
	for name, c := range map[string]struct {
		has  []any
		want int // of three who wait
	}{
		"nobody":                     {nil, 0},
		"one of ours":                {[]any{ours}, 0},
		"one of its own":             {[]any{own}, 0},
		"one of Redisson's":          {[]any{java}, 3},
		"one that writes":            {[]any{"mode", java + ":write"}, 3},
		"both":                       {[]any{ours, java}, 1},
		"one of its own and another": {[]any{"mode", own, java}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				looks, held := 0, false
				subscriber := listener(t)
				defer subscriber.Close()
				s := &session{Options: Options{Transport: &fakeTransport{answer: func(cmd Command) Reply {
					switch {
					case strings.Contains(cmd.Script, "hkeys"):
						looks++
						return Reply{Value: c.has}
					case held:
						return Reply{Value: int64(1000)}
					default:
						return Reply{}
					}
				}}, Subscriber: subscriber}}
				attempt := func() {
					req := backend.AcquireRequest{Name: "n", Owner: own, Lease: time.Second}
					if _, _, err := s.attempt(t.Context(), kindOf(backend.Exclusive), req); err != nil {
						t.Error(err)
					}
				}
				for range 3 {
					attempt()
				}
				held = true
				attempt()
				if looks > 0 || s.strangers.among(3, "n") != 0 {
					t.Error("somebody has looked who was refused nothing before")
				}
				for range 3 {
					attempt() // at once
				}
				if got := s.strangers.among(3, "n"); looks != 1 || got != c.want {
					t.Errorf("after %d looks %d of three are strangers, want %d after one", looks, got, c.want)
				}
				time.Sleep(lookEvery)
				if attempt(); looks != 2 {
					t.Errorf("%d looks, want 2", looks)
				}
				time.Sleep(strangersStay + time.Millisecond)
				if got := s.strangers.among(3, "n"); got != 0 {
					t.Errorf("much later %d are strangers", got)
				}
			})
		})
	}
}
