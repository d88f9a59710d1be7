package faults_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func newProxy(t *testing.T, server string, protocol faults.Protocol) *faults.Proxy {
	t.Helper()
	p, err := faults.NewProxy(server, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// A counter is a server with a number that a client reads and increments. The client can also
// listen for messages. It repeats no request by itself.
type counter struct {
	proxy     *faults.Proxy
	increment func(context.Context) error
	get       func(context.Context) (int, error)
	big       func(context.Context) error // sends a big request and reads a big reply
	listen    func(context.Context) <-chan string
	publish   func(context.Context, string) error

	matchIncrement func(faults.Request) bool
}

const bigSize = 1 << 20

// counters make the clients and servers that the proxy is tested with.
var counters = map[string]func(t *testing.T) *counter{
	"go-redis RESP3": func(t *testing.T) *counter { return goRedisCounter(t, 3) },
	"go-redis RESP2": func(t *testing.T) *counter { return goRedisCounter(t, 2) },
	"valkey-go":      valkeyCounter,
	"etcd":           etcdCounter,
}

func isWord(word string) func(faults.Request) bool {
	return func(r faults.Request) bool {
		return len(r.Words) > 0 && strings.EqualFold(r.Words[0], word)
	}
}

func goRedisCounter(t *testing.T, protocol int) *counter {
	p := newProxy(t, testservers.Redis(t).Addr, faults.RESP)
	rdb := redis.NewClient(&redis.Options{
		Addr: p.Addr(), Protocol: protocol, MaxRetries: -1, ReadTimeout: testservers.Patience,
	})
	t.Cleanup(func() { rdb.Close() })
	return &counter{
		proxy:     p,
		increment: func(ctx context.Context) error { return rdb.Incr(ctx, "n").Err() },
		get:       func(ctx context.Context) (int, error) { return rdb.Get(ctx, "n").Int() },
		big: func(ctx context.Context) error {
			if err := rdb.Set(ctx, "big", strings.Repeat("x", bigSize), 0).Err(); err != nil {
				return err
			}
			return rdb.Get(ctx, "big").Err()
		},
		listen: func(ctx context.Context) <-chan string {
			got := make(chan string, 10)
			sub := rdb.Subscribe(ctx, "c")
			if _, err := sub.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(got)
				context.AfterFunc(ctx, func() { sub.Close() })
				for {
					m, err := sub.ReceiveMessage(context.Background())
					if err != nil {
						return
					}
					got <- m.Payload
				}
			}()
			t.Cleanup(func() { <-got })
			return got
		},
		publish: func(ctx context.Context, m string) error {
			return rdb.Publish(ctx, "c", m).Err()
		},
		matchIncrement: isWord("incr"),
	}
}

func valkeyCounter(t *testing.T) *counter {
	p := newProxy(t, testservers.Valkey(t).Addr, faults.RESP)
	vk, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{p.Addr()}, DisableRetry: true, DisableCache: true,
		ConnWriteTimeout:  testservers.Patience,
		PipelineMultiplex: -1, // one connection, so that a read notices a cut
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(vk.Close)
	return &counter{
		proxy: p,
		increment: func(ctx context.Context) error {
			return vk.Do(ctx, vk.B().Incr().Key("n").Build()).Error()
		},
		get: func(ctx context.Context) (int, error) {
			n, err := vk.Do(ctx, vk.B().Get().Key("n").Build()).AsInt64()
			return int(n), err
		},
		big: func(ctx context.Context) error {
			if err := vk.Do(ctx, vk.B().Set().Key("big").Value(strings.Repeat("x", bigSize)).
				Build()).Error(); err != nil {
				return err
			}
			return vk.Do(ctx, vk.B().Get().Key("big").Build()).Error()
		},
		listen: func(ctx context.Context) <-chan string {
			got := make(chan string, 10)
			ready := make(chan struct{})
			go func() {
				defer close(got)
				client, cancel := vk.Dedicate()
				defer cancel()
				over := client.SetPubSubHooks(valkey.PubSubHooks{
					OnMessage:      func(m valkey.PubSubMessage) { got <- m.Message },
					OnSubscription: func(valkey.PubSubSubscription) { close(ready) },
				})
				client.Do(ctx, client.B().Subscribe().Channel("c").Build())
				select {
				case <-over:
				case <-ctx.Done():
				}
			}()
			t.Cleanup(func() { <-got })
			<-ready
			return got
		},
		publish: func(ctx context.Context, m string) error {
			return vk.Do(ctx, vk.B().Publish().Channel("c").Message(m).Build()).Error()
		},
		matchIncrement: isWord("incr"),
	}
}

func etcdCounter(t *testing.T) *counter {
	p := newProxy(t, testservers.Etcd(t).Addr, faults.HTTP2)
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return &counter{
		proxy: p,
		increment: func(ctx context.Context) error { // each put adds one to the key's version
			_, err := cli.Put(ctx, "n", "")
			return err
		},
		get: func(ctx context.Context) (int, error) {
			res, err := cli.Get(ctx, "n")
			if err != nil || len(res.Kvs) == 0 {
				return 0, err
			}
			return int(res.Kvs[0].Version), nil
		},
		big: func(ctx context.Context) error {
			if _, err := cli.Put(ctx, "big", strings.Repeat("x", bigSize)); err != nil {
				return err
			}
			_, err := cli.Get(ctx, "big")
			return err
		},
		listen: func(ctx context.Context) <-chan string {
			got := make(chan string, 10)
			events := cli.Watch(ctx, "c", clientv3.WithCreatedNotify())
			<-events
			go func() {
				defer close(got)
				for e := range events {
					for _, ev := range e.Events {
						got <- string(ev.Kv.Value)
					}
				}
			}()
			t.Cleanup(func() { <-got })
			return got
		},
		publish: func(ctx context.Context, m string) error {
			_, err := cli.Put(ctx, "c", m)
			return err
		},
		matchIncrement: func(r faults.Request) bool {
			return r.Method == "/etcdserverpb.KV/Put" && strings.Contains(string(r.Message), "n")
		},
	}
}

func onCounters(t *testing.T, test func(t *testing.T, c *counter)) {
	for name, open := range counters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// read returns the number as soon as the client can read again.
func (c *counter) read(t *testing.T) (n int) {
	t.Helper()
	testservers.Until(t, "the client can read again", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var err error
		n, err = c.get(ctx)
		return err == nil
	})
	return n
}

func (c *counter) want(t *testing.T, want int) {
	t.Helper()
	if got := c.read(t); got != want {
		t.Errorf("the counter is %d, want %d", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// come waits for a value that must come.
func come[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(testservers.Patience):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

func TestProxyHarmsNothing(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		heard := c.listen(ctx)
		errs := make(chan error)
		for range 10 {
			go func() {
				var err error
				for i := 0; i < 20 && err == nil; i++ {
					err = c.increment(ctx)
				}
				errs <- err
			}()
		}
		for range 10 {
			must(t, <-errs)
		}
		c.want(t, 200)
		must(t, c.big(ctx))
		for _, m := range []string{"a", "b", "c"} {
			must(t, c.publish(ctx, m))
			if got := come(t, "a message", heard); got != m {
				t.Errorf("heard %q, want %q", got, m)
			}
		}
		c.proxy.SetDelay(20 * time.Millisecond)
		begin := time.Now()
		must(t, c.increment(ctx))
		if d := time.Since(begin); d < 40*time.Millisecond {
			t.Errorf("a delay of 20 ms each way took %v", d)
		}
	})
}

func TestProxyLosesOneReply(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		ctx := t.Context()
		must(t, c.increment(ctx))
		for i := range 3 {
			lost := c.proxy.LoseReply(c.matchIncrement)
			c.want(t, 2*i+1) // the reply to another request isn't lost
			if err := c.increment(ctx); err == nil {
				t.Error("the reply came")
			}
			come(t, "the reply that is lost", lost)
			c.want(t, 2*i+2)
			must(t, c.increment(ctx))
			c.want(t, 2*i+3)
		}
	})
}

// TestProxyLosesTheReplyThatWasMeant sends several requests together. The client must get the
// replies before the lost one, and no others.
func TestProxyLosesTheReplyThatWasMeant(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	p := newProxy(t, server.Addr, faults.RESP)
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testservers.Patience))
	lost := p.LoseReply(func(r faults.Request) bool {
		return len(r.Words) == 2 && r.Words[1] == "c"
	})
	for _, key := range []string{"a", "b", "c", "d"} {
		fmt.Fprintf(conn, "*2\r\n$4\r\nINCR\r\n$1\r\n%s\r\n", key)
	}
	got, err := io.ReadAll(conn)
	if string(got) != ":1\r\n:1\r\n" {
		t.Errorf("the client reads %q, %v", got, err)
	}
	come(t, "the reply that is lost", lost)
	if got := server.Do("GET", "c"); got != "1" {
		t.Errorf("the request was not carried out: %q", got)
	}
}

func TestProxyHoldsARequestBack(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		must(t, c.increment(t.Context()))
		held, deliver := c.proxy.Hold(c.matchIncrement)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { failed <- c.increment(ctx) }()
		come(t, "the request that is held", held)
		cancel()
		deliver()
		<-failed // go-redis ignores the end of the context, and gets the reply
		testservers.Until(t, "the late request is carried out", func() bool {
			n, err := c.get(t.Context())
			return err == nil && n == 2
		})
	})
}

// TestProxyDeliversForAClientThatIsGone tests that a client's request may arrive long after the
// client has gone.
func TestProxyDeliversForAClientThatIsGone(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	p := newProxy(t, server.Addr, faults.RESP)
	send := func(request string) {
		conn, err := net.Dial("tcp", p.Addr())
		must(t, err)
		fmt.Fprint(conn, request)
		conn.Close()
	}
	const request = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n"
	isCarriedOut := func(n string) {
		testservers.Until(t, "the request is carried out", func() bool {
			return server.Do("GET", "n") == n
		})
	}

	held, deliver := p.Hold(isWord("incr"))
	send(request)
	come(t, "the request that is held", held)
	deliver()
	isCarriedOut("1")

	p.Block(faults.Both)
	send(request)
	p.Unblock(faults.Both)
	isCarriedOut("2")

	held, deliver = p.Hold(isWord("incr"))
	send(request)
	come(t, "the request that is held", held)
	p.Cut() // drops the held request
	deliver()
	send(request)
	isCarriedOut("3")
}

func TestProxyBlocksAndCuts(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		must(t, c.increment(t.Context()))
		n := 1
		for _, d := range []faults.Direction{faults.ToServer, faults.ToClient, faults.Both} {
			for _, cut := range []bool{false, true} {
				c.proxy.Block(d)
				done := make(chan error, 1)
				go func() { done <- c.increment(t.Context()) }()
				select {
				case err := <-done:
					t.Errorf("a request went through a block: %v", err)
				case <-time.After(50 * time.Millisecond):
				}
				if cut {
					c.proxy.Cut()
				}
				c.proxy.Unblock(d)
				err := come(t, "an answer", done)
				switch {
				case !cut:
					must(t, err)
					n++
				case err == nil && d == faults.ToClient:
					t.Error("a reply that was cut off came")
				case err == nil:
					n++ // it hadn't been sent, so the client repeated it
				case d == faults.ToClient && c.read(t) == n+1:
					n++ // the server had carried it out
				}
				c.want(t, n)
			}
		}
	})
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		must(t, c.increment(t.Context()))
		c.proxy.Refuse(true)
		c.proxy.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := c.get(ctx); err == nil {
			t.Error("a connection was made")
		}
		c.proxy.Refuse(false)
		c.want(t, 1)
	})
}

// TestProxyStrikes tests that a fault can hit any single request of a sequence, and only that one.
func TestProxyStrikes(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		want := c.incremented(t, 1, 0)
		for n := range 2 {
			for _, blow := range []faults.Blow{faults.LoseRequest, faults.LoseReply} {
				c.want(t, want) // waits until a connection works
				end := c.proxy.Strike(blow, n)
				want = c.incremented(t, n, want)
				if err := c.increment(t.Context()); err == nil {
					t.Errorf("%v, of request %d: no error", blow, n)
				}
				if !end() {
					t.Fatalf("%v: request %d was not struck", blow, n)
				}
				if blow == faults.LoseReply {
					want++
				}
				c.want(t, want)
			}
		}
	})
}

// incremented increments n times, and returns the number that the counter then has.
func (c *counter) incremented(t *testing.T, n, was int) int {
	t.Helper()
	for range n {
		must(t, c.increment(t.Context()))
	}
	return was + n
}

func TestProxyStrikesWithDelay(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		c.incremented(t, 1, 0)
		end := c.proxy.Strike(faults.HoldRequest, 0)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() { failed <- c.increment(ctx) }()
		// A deadline won't do: gRPC tells the server the deadline, and the server doesn't carry out
		// a request that arrives after it.
		time.AfterFunc(100*time.Millisecond, cancel)
		select {
		case err := <-failed:
			if err == nil {
				t.Error("a request that is held back was answered")
			}
		case <-time.After(200 * time.Millisecond):
			// go-redis ignores the end of the context, and gets the reply
		}
		if !end() {
			t.Fatal("no request was struck")
		}
		c.want(t, 2) // when end has returned, the request is carried out
	})
}

func TestProxyCallsAStrikeOff(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, c *counter) {
		c.incremented(t, 1, 0)
		for _, blow := range []faults.Blow{faults.LoseRequest, faults.LoseReply,
			faults.HoldRequest} {
			if end := c.proxy.Strike(blow, 100); end() {
				t.Errorf("%v: nothing was sent, and was struck", blow)
			}
			must(t, c.increment(t.Context()))
		}
		c.want(t, 4)
	})
}

// TestProxyOfBytes tests a protocol that the proxy doesn't know. The proxy passes it on as it is,
// and faults still work.
func TestProxyOfBytes(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	p := newProxy(t, server.Addr, faults.Bytes)
	send := func(key string) string {
		conn, err := net.Dial("tcp", p.Addr())
		must(t, err)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(testservers.Patience))
		var all string
		for range 3 {
			fmt.Fprintf(conn, "INCR %s\r\n", key)
			reply := make([]byte, 100)
			n, err := conn.Read(reply)
			if err != nil {
				break
			}
			all += strings.TrimSpace(string(reply[:n]))
		}
		return all
	}
	for _, c := range []struct {
		key     string
		strike  func() (end func() bool)
		replies string
		count   string
	}{
		{"untouched", func() func() bool { return func() bool { return true } }, ":1:2:3", "3"},
		{"request", func() func() bool { return p.Strike(faults.LoseRequest, 1) }, ":1", "1"},
		{"reply", func() func() bool { return p.Strike(faults.LoseReply, 1) }, ":1", "2"},
		{"matched", func() func() bool {
			lost := p.LoseReply(func(r faults.Request) bool {
				return strings.Contains(string(r.Bytes), "INCR matched")
			})
			return func() bool { <-lost; return true }
		}, "", "1"},
	} {
		end := c.strike()
		if got := send(c.key); got != c.replies {
			t.Errorf("%s: the client reads %q, want %q", c.key, got, c.replies)
		}
		if !end() {
			t.Errorf("%s: nothing was struck", c.key)
		}
		if got := server.Do("GET", c.key); got != c.count {
			t.Errorf("%s: carried out %s times, want %s", c.key, got, c.count)
		}
	}
	held, deliver := p.Hold(func(faults.Request) bool { return true })
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	fmt.Fprint(conn, "INCR late\r\n")
	conn.Close()
	come(t, "the request that is held", held)
	deliver()
	p.Settle()
	if got := server.Do("GET", "late"); got != "1" {
		t.Errorf("a late request was carried out %q times", got)
	}
}
