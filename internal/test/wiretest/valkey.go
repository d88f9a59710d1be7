package wiretest

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/valkey-io/valkey-go"
)

// NewValkey is like [valkey.NewClient], but also returns a function that closes the client and all
// of its connections. If a valkey-go client is closed while it sets up a connection, it leaves that
// connection open.
func NewValkey(opts valkey.ClientOption) (client valkey.Client, closeAll func(), err error) {
	all := &connections{dial: opts.DialCtxFn}
	if all.dial == nil {
		all.dial = func(
			ctx context.Context, addr string, d *net.Dialer, _ *tls.Config,
		) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	opts.DialCtxFn = all.open
	client, err = valkey.NewClient(opts)
	return client, func() {
		if client != nil {
			client.Close()
		}
		all.close()
	}, err
}

// connections are the connections of one client.
type connections struct {
	dial func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

	mu     sync.Mutex
	closed bool
	opened []net.Conn
}

func (all *connections) open(
	ctx context.Context, addr string, d *net.Dialer, config *tls.Config,
) (net.Conn, error) {
	conn, err := all.dial(ctx, addr, d, config)
	if err != nil {
		return nil, err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		conn.Close()
	}
	all.opened = append(all.opened, conn)
	return conn, nil
}

func (all *connections) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.closed = true
	for _, conn := range all.opened {
		conn.Close()
	}
}
