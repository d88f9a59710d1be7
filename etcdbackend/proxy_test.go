package etcdbackend_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A proxy stands between clients and a server, and cuts connections when it is told to.
type proxy struct {
	net.Listener
	server string
	all    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	over  bool
}

func startProxy(t testing.TB, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, server: server, conns: make(map[net.Conn]struct{})}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		p.cut()
		p.all.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		if !p.add(client, server) {
			client.Close()
			server.Close()
			continue
		}
		p.all.Go(func() { p.copy(client, server) })
		p.all.Go(func() { p.copy(server, client) })
	}
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if !p.over {
			p.conns[c] = struct{}{}
		}
	}
	return !p.over
}

// copy hands on what comes from one side, until that closes.
func (p *proxy) copy(to, from net.Conn) {
	io.Copy(to, from)
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, from)
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}
