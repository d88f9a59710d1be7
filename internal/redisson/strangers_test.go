package redisson

import (
	"context"
	"fmt"
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

// listener returns a subscriber that listens to a channel.
func listener(t *testing.T, channel string) *pubsub.Subscriber {
	s := pubsub.New(silence{}, pubsub.Options{})
	go s.Subscribe(t.Context(), channel, Unlocked, func(pubsub.Meaning) {}, nil)
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

// A client that waits for a lock looks who has it, with an attempt now and then. So it knows how
// many of the waiters are Redisson's. It doesn't look before it was refused.
func TestStrangers(t *testing.T) {
	const ours, own = "host/1/ABC:7", "host/2/DEF:9"
	const java, java2 = "559cc9df-bad8-4f6c-86a4-ffa51b7f1c36:41",
		"a3aa9c3b-5a1c-4b1e-8f7e-000000000000:1"
	const thread2 = "559cc9df-bad8-4f6c-86a4-ffa51b7f1c36:42"
	permit := func(owner string) string { return holder(owner) + "\xff\xff\xff\xff" }
	javas := strings.Repeat("J", idLen)
	for name, c := range map[string]struct {
		kind backend.Kind
		has  []any
		want int // of three who wait
	}{
		"nobody":                     {backend.Exclusive, nil, 0},
		"one of ours":                {backend.Exclusive, []any{ours}, 0},
		"one of its own":             {backend.Exclusive, []any{own}, 0},
		"one of Redisson's":          {backend.Exclusive, []any{java}, 3},
		"one of Redisson's, fenced":  {backend.Fenced, []any{java}, 3},
		"one that writes":            {backend.Write, []any{"mode", java + ":write"}, 3},
		"both":                       {backend.Exclusive, []any{ours, java}, 1},
		"both, and more":             {backend.Exclusive, []any{ours, java, java2}, 2},
		"both, and another thread":   {backend.Exclusive, []any{ours, java, thread2}, 1},
		"one of its own and another": {backend.Exclusive, []any{"mode", own, java}, 3},
		"nobody's permits":           {backend.Permits, nil, 0},
		"permits of ours":            {backend.Permits, []any{permit(ours)}, 0},
		"permits of its own":         {backend.Permits, []any{permit(own)}, 0},
		"permits of Redisson's":      {backend.Permits, []any{javas}, 3},
		"permits of both":            {backend.Permits, []any{permit(ours), javas}, 1},
		"permits of its own and Redisson's": {
			backend.Permits, []any{permit("host/2/DEF:8"), javas}, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := kindOf(c.kind)
				looks, held := 0, false
				subscriber := listener(t, k.channel("n"))
				defer subscriber.Close()
				s := &session{Options: Options{Transport: &fakeTransport{answer: func(
					cmd Command,
				) Reply {
					switch {
					case cmd.Script == k.holders("n").Script:
						looks++
						return Reply{Value: c.has}
					case held:
						return Reply{Value: int64(1000)}
					default:
						return Reply{Value: granted[c.kind]}
					}
				}}, Subscriber: subscriber}}
				attempt := func(owner string) {
					t.Helper()
					req := backend.AcquireRequest{
						Name: "n", Owner: k.called(owner), Lease: time.Second, Permits: 1,
					}
					if _, _, err := s.attempt(t.Context(), k, req); err != nil {
						t.Error(err)
					}
				}
				for _, owner := range []string{"host/2/DEF:8", own, own} {
					attempt(owner)
				}
				held = true
				attempt(own)
				if looks > 0 || s.strangers.among(3, "n") != 0 {
					t.Error("somebody has looked who was refused nothing before")
				}
				for range 3 {
					attempt(own) // at once
				}
				if got := s.strangers.among(3, "n"); looks != 1 || got != c.want {
					t.Errorf("after %d looks %d of three are strangers, want %d after one", looks,
						got, c.want)
				}
				if got := s.strangers.among(1, "n"); got != min(c.want, 1) {
					t.Errorf("%d of one are strangers, want %d", got, min(c.want, 1))
				}
				time.Sleep(lookEvery)
				if attempt(own); looks != 2 {
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

// granted are the replies to an attempt that gets a lock, where these aren't empty.
var granted = map[backend.Kind]any{
	backend.Write: []any{int64(1)}, backend.Permits: []any{int64(1)},
	backend.Fenced: []any{int64(1), "1"},
}

// A client knows the last of its own owners that had permits, however many these were.
func TestStrangersForgetOwnPermits(t *testing.T) {
	var s strangers
	k := kindOf(backend.Permits)
	s.refused("n")
	owners := make([]string, 3*mostOwn)
	for i := range owners {
		owners[i] = holder(fmt.Sprint("host/2/DEF:", i))
		s.asks(owners[i])
		s.asks(owners[i]) // again
	}
	ids := func(owner string) Reply {
		return Reply{Value: []any{owner + "\xff\xff\xff\xff", "Redisson's own id"}}
	}
	s.saw(k, "n", owners[len(owners)-1], ids(owners[2*mostOwn]))
	if got := s.among(3, "n"); got != 3 {
		t.Errorf("beside a permit of its own %d of three are strangers, want all", got)
	}
	s.saw(k, "n", owners[len(owners)-1], ids(owners[0]))
	if got := s.among(3, "n"); len(s.own) != mostOwn || got != 1 {
		t.Errorf("%d owners are known, and beside one that isn't %d of three are strangers, want "+
			"%d and 1", len(s.own), got, mostOwn)
	}
}
