// Package faults does to the traffic between clients and a real server what networks do to it, at
// the moment that a test chooses. A [Proxy] cuts connections, holds traffic up, loses one request or
// one reply, or delivers one request late:
//
//	proxy, err := faults.NewProxy("127.0.0.1:6379", faults.RESP)
//	if err != nil {
//		t.Fatal(err)
//	}
//	t.Cleanup(func() { proxy.Close() })
//	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
//	// … and whatever the test needs of it
//	proxy.Block(faults.ToClient) // from here on the client hears nothing
//
// It is for the tests of those who write a backend. [Proxy.Strike] is what the contract suite wants
// for Store.Fragile; the other methods are for tests of one's own.
package faults

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// A Protocol is the language of clients and server, not encrypted.
type Protocol int

// The protocols in which a proxy finds single requests.
const (
	RESP  Protocol = iota // of Redis and Valkey, in either of its versions
	HTTP2                 // with gRPC, of etcd
	Bytes                 // any other, if clients wait for each reply before the next request
)

// A Direction is that of traffic. Both may be combined with |.
type Direction int

// The directions of traffic.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// A Request is what a client sent.
type Request struct {
	Words   []string // RESP: the command and its arguments
	Method  string   // HTTP2: the method, as "/etcdserverpb.KV/Txn"
	Message []byte   // HTTP2: the message
	Bytes   []byte   // Bytes: what came at once, which may be a part of a big request
}

// A Blow is what can happen to one request.
type Blow int

// What can happen to a request.
const (
	LoseRequest Blow = iota // the connection ends instead, and the server never sees it
	LoseReply               // the server carries it out, and the connection ends before the reply
	HoldRequest             // the server sees it, but late
)

// String returns the blow in words.
func (b Blow) String() string {
	return [...]string{"request lost", "reply lost", "request late"}[b]
}

// A Proxy stands between clients and a server. Its methods may be called at any time and
// concurrently. Each has taken effect when it returns.
type Proxy struct {
	listener net.Listener
	server   string
	protocol Protocol
	running  sync.WaitGroup
	late     sync.WaitGroup // requests that were held and delivered, and are not answered

	mu      sync.Mutex
	links   map[*link]struct{}
	closed  bool
	refused bool
	delay   time.Duration
	blocked Direction
	traps   []*trap
}

// A trap waits for a request.
type trap struct {
	match   func(Request) bool
	blow    Blow
	sprung  chan struct{} // closed when the request, or its reply, was lost or held
	open    bool          // what was held may pass
	caught  *flow         // where the request was to go
	waiting [][]byte      // the request and what must not overtake it
	silent  bool          // no answer will come, or it can't be told from others
	counted bool          // in late
}

// NewProxy returns a proxy for the server at an address. Close it.
func NewProxy(server string, protocol Protocol) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, server: server, protocol: protocol, links: make(map[*link]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the address that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close ends the proxy and all connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Cut()
	p.running.Wait()
	return err
}

// Cut ends all connections and drops their delayed traffic. New connections are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse says whether new connections are ended at once.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = refuse
}

// SetDelay sets the delay in each direction. The order stays.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	for l := range p.links {
		l.poke()
	}
}

// Block lets nothing pass in a direction, not even the end of a connection: a black hole.
// Connections can be made, and stay.
func (p *Proxy) Block(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked |= d
}

// Unblock ends a Block, and passes the blocked traffic on, late, even if its client is gone. Call
// [Proxy.Cut] before to drop it.
func (p *Proxy) Unblock(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked &^= d
	for l := range p.links {
		l.poke()
	}
}

// LoseReply loses the reply to the next request that matches. The server carries the request out,
// replies to earlier ones pass, and the connection is cut in place of the reply. Then the channel
// is closed.
//
// Requests that were sent together with it, or after it, may have been carried out or not. On a
// stream of HTTP/2 with several messages, any message counts as the reply. Over RESP, connections
// that have subscribed are ignored.
//
// The function must not use the proxy.
func (p *Proxy) LoseReply(match func(Request) bool) (lost <-chan struct{}) {
	return p.set(&trap{match: match, blow: LoseReply}).sprung
}

// Hold holds back the next request that matches, and all that follows it on its connection, or on
// its stream of HTTP/2. The channel is closed when the request has come. Deliver passes it on to
// the server, even if the client is gone by then, as a network may. [Proxy.Cut] drops it.
func (p *Proxy) Hold(match func(Request) bool) (held <-chan struct{}, deliver func()) {
	t := p.set(&trap{match: match, blow: HoldRequest})
	return t.sprung, func() { p.deliver(t) }
}

// Strike deals a blow to the nth request, from 0, of those that come from now on, from any client
// and on any connection. If a reply is to be lost, requests whose replies can't be told from others
// don't count (see [Proxy.LoseReply]). End says whether there was such a request. If not, it calls
// the blow off. A request that was held is delivered then, and end returns when it is answered.
func (p *Proxy) Strike(blow Blow, n int) (end func() (struck bool)) {
	t := p.set(&trap{blow: blow, match: func(Request) bool { n--; return n < 0 }})
	return func() bool {
		p.deliver(t)
		p.Settle()
		select {
		case <-t.sprung:
			return true
		default:
			return false
		}
	}
}

// Settle waits until the server has answered all delivered requests that were held, or their
// connections have ended. It doesn't wait for answers to subscriptions over RESP.
func (p *Proxy) Settle() { p.late.Wait() }

func (p *Proxy) set(t *trap) *trap {
	t.sprung = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t
}

func (p *Proxy) deliver(t *trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(t)
	if t.caught == nil || t.open {
		return
	}
	t.open = true
	if !t.caught.gone && !t.silent {
		t.counted = true
		p.late.Add(1)
	}
	t.caught.held--
	t.caught.pass(t.waiting...)
	t.waiting = nil
}

// answered notes that what was held is answered, or never will be. p.mu is held.
func (t *trap) answered() {
	t.silent = true // perhaps before it was delivered: the server didn't want to wait for longer
	if t.counted {
		t.counted = false
		t.caught.late.Done()
	}
}

// pass holds something back, too. p.mu is held.
func (t *trap) pass(unit []byte) { t.waiting = append(t.waiting, unit) }

// drop takes a trap away. p.mu is held.
func (p *Proxy) drop(t *trap) {
	p.traps = slices.DeleteFunc(p.traps, func(other *trap) bool { return other == t })
}

// spring returns the trap that a request walks into, or nil. If its reply can't be told from
// others, it can only be held back. p.mu is held.
func (p *Proxy) spring(req Request, answered bool) *trap {
	for _, t := range p.traps {
		if (t.blow != LoseReply || answered) && t.match(req) {
			p.drop(t)
			return t
		}
	}
	return nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// serve connects a client with the server until both have ended.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	l := p.link(client, server)
	if l == nil {
		return
	}
	requests, replies := p.parsers(l)
	var all sync.WaitGroup
	all.Go(func() { l.toServer.read(requests) })
	all.Go(func() { l.toClient.read(replies) })
	all.Go(func() {
		l.toServer.write(server)
		server.(*net.TCPConn).CloseWrite()
	})
	all.Go(func() {
		l.toClient.write(client)
		client.Close()
	})
	all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
	l.gone = true
	for _, t := range l.holds {
		t.answered()
	}
}

// parsers returns what reads the two sides of a link.
func (p *Proxy) parsers(l *link) (requests, replies parser) {
	switch p.protocol {
	case HTTP2:
		return newHTTP2(l)
	case Bytes:
		return newBytes(l)
	default:
		return newRESP(l)
	}
}

// link returns a new link, or nil if there may be none.
func (p *Proxy) link(client, server net.Conn) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refused {
		return nil
	}
	l := &link{Proxy: p, client: client, server: server}
	l.toServer = flow{link: l, direction: ToServer, changed: make(chan struct{}, 1)}
	l.toClient = flow{link: l, direction: ToClient, changed: make(chan struct{}, 1)}
	p.links[l] = struct{}{}
	return l
}

// A link is a client's connection, and that to the server which belongs to it.
type link struct {
	*Proxy
	client, server     net.Conn
	toServer, toClient flow
	over               bool // it was cut
	gone               bool
	holds              []*trap // what has held something of it back
}

// cut ends the link. p.mu is held.
func (l *link) cut() {
	l.over = true
	l.client.Close()
	l.server.Close()
	l.poke()
}

// lose ends the flow in place of what was to be lost. What came before it passes. p.mu is held.
func (f *flow) lose(t *trap) {
	if f.shut {
		return
	}
	f.shut = true
	f.poke()
	close(t.sprung)
}

// poke has both directions look at what has changed. p.mu is held.
func (l *link) poke() {
	l.toServer.poke()
	l.toClient.poke()
}

// A flow is one direction of a link. The reader never waits for the writer.
type flow struct {
	*link
	direction Direction
	changed   chan struct{}

	parcels []parcel // on their way
	ended   bool     // nothing will be read any more
	shut    bool     // what comes is dropped
	held    int      // traps that hold something of it back
}

// A parcel is some bytes, and when they came.
type parcel struct {
	data []byte
	came time.Time
}

// A parser reads units of the protocol (a request, a reply, a frame) and hands them on.
type parser interface {
	// read returns the next unit.
	read() ([]byte, error)

	// pass lets the unit pass, or springs a trap. p.mu is held.
	pass(unit []byte)
}

// errProtocol says that somebody doesn't speak the protocol.
var errProtocol = errors.New("faults: not the protocol")

// read reads until the connection ends.
func (f *flow) read(p parser) {
	for {
		unit, err := p.read()
		f.mu.Lock()
		if err == nil {
			p.pass(unit)
			f.mu.Unlock()
			continue
		}
		if errors.Is(err, errProtocol) {
			f.cut() // better than to pass on what isn't understood
		}
		f.ended = true
		f.poke()
		f.mu.Unlock()
		return
	}
}

// pass lets something pass, after what is on its way. p.mu is held.
func (f *flow) pass(units ...[]byte) {
	for _, unit := range units {
		if f.shut {
			return
		}
		f.parcels = append(f.parcels, parcel{unit, time.Now()})
	}
	f.poke()
}

// poke has the writer look at what has changed.
func (f *flow) poke() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// write writes what passes until nothing more will. What can't be written is dropped.
func (f *flow) write(to net.Conn) {
	for {
		data, wait, more := f.next()
		switch {
		case !more:
			return
		case data == nil:
			f.pause(wait)
		default:
			to.Write(data) // if it can't be, the other direction ends, too
		}
	}
}

// next returns what is to be written now, or how long to wait before the next look unless something
// changes; 0 is for ever.
func (f *flow) next() (data []byte, wait time.Duration, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
		return nil, 0, false
	case f.blocked&f.direction != 0:
		return nil, 0, true
	case len(f.parcels) == 0:
		return nil, 0, !f.shut && !f.ended || f.held > 0
	}
	first := f.parcels[0]
	if wait := f.delay - time.Since(first.came); wait > 0 {
		return nil, wait, true
	}
	f.parcels = f.parcels[1:]
	return first.data, 0, true
}

func (f *flow) pause(d time.Duration) {
	if d == 0 {
		<-f.changed
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-f.changed:
	case <-timer.C:
	}
}

// hold has a trap hold a request back, and what is passed to the trap after it. p.mu is held.
func (f *flow) hold(t *trap, request []byte) {
	t.caught = f
	f.holds = append(f.holds, t)
	t.waiting = append(t.waiting, request)
	f.held++
	close(t.sprung)
}
