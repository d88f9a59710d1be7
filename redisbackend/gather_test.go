package redisbackend_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

// A hook sees nobody's context values, or with the option those of the step's caller.
func TestContextValues(t *testing.T) {
	server := testservers.Redis(t)
	for name, opts := range map[string][]redisbackend.Option{
		"nobody's": nil, "own": {redisbackend.WithContextValues()},
	} {
		t.Run(name, func(t *testing.T) {
			wiretest.ContextValues(t, len(opts) > 0, func(
				t *testing.T, tenants *wiretest.Tenants,
			) backend.Backend {
				client := connect(t, server.Addr)
				client.AddHook(hooks{around: func(
					ctx context.Context, cmds []redis.Cmder, send func() error,
				) error {
					for _, cmd := range cmds {
						var words []string
						for _, arg := range cmd.Args() {
							words = append(words, fmt.Sprint(arg))
						}
						tenants.Note(ctx, words)
					}
					return send()
				}})
				return redisbackend.New(client, opts...)
			})
		})
	}
}

// Some connections that hang don't hold up the steps on others.
func TestSomeConnectionsHang(t *testing.T) {
	server := testservers.Redis(t)
	p := wiretest.NewProxy(t, server.Addr, faults.RESP)
	var dials atomic.Int32
	s := open(t, connect(t, server.Addr, func(o *redis.Options) {
		o.PoolSize = 50
		o.ReadTimeout = 2 * testservers.Patience
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) <= 6 {
				addr = p.Addr() // one of several proxies
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}))
	p.Block(faults.ToClient)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var hung sync.WaitGroup
	for i := range 6 {
		hung.Go(func() {
			_, err := s.Acquire(ctx, backend.AcquireRequest{
				Name: fmt.Sprint("hung", i), Owner: alice, Lease: lease,
			})
			if err == nil {
				t.Error("a connection that hangs answers")
			}
		})
		testservers.Until(t, "it hangs on a connection of its own", func() bool {
			return dials.Load() > int32(i)
		})
	}
	for i := range 20 {
		patient, cancel := context.WithTimeout(ctx, testservers.Patience)
		_, err := s.Acquire(patient, backend.AcquireRequest{
			Name: fmt.Sprint("n", i), Owner: alice, Lease: lease,
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	hung.Wait()
	p.Cut()
	backend.CapabilitiesOf(s).Settle()
}

// A caller that leaves before its step is sent is told that the step was not carried out: it never
// will be sent.
func TestLeavingWhileItConnects(t *testing.T) {
	server := testservers.Redis(t)
	direct := connect(t, server.Addr)
	dialing := make(chan struct{}, 100)
	s := open(t, connect(t, server.Addr, func(o *redis.Options) {
		o.DialerRetries = 1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialing <- struct{}{}
			time.Sleep(20 * time.Millisecond)
			return new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, addr)
		}
	}))
	for _, step := range steps[:4] {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- step.Run(ctx, s) }()
		<-dialing
		cancel()
		wantKind(t, <-left, backend.Retry)
		backend.CapabilitiesOf(s).Settle()
	}
	if n := direct.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys, though nothing was sent", n)
	}
}
