// Package faults injects network faults between clients and a real server, at a moment that the
// test chooses. A [Proxy] cuts connections, delays traffic, loses one request or one reply, or
// delivers one request late:
//
//	proxy, err := faults.NewProxy("127.0.0.1:6379", faults.RESP)
//	if err != nil {
//		t.Fatal(err)
//	}
//	t.Cleanup(func() { proxy.Close() })
//	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
//	// … use the client, for example to acquire a lock …
//	proxy.Block(faults.ToClient) // from now on the client receives nothing
//
// The package is for tests of a backend. Package contract needs only [Proxy.Strike], as the second
// result of Store.Fragile. The other methods are for your own tests.
package faults

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// A Protocol is the protocol between the clients and the server. It must be unencrypted.
type Protocol int

// The protocols in which a proxy recognizes single requests.
const (
	RESP  Protocol = iota // of Redis and Valkey, in both versions
	HTTP2                 // of etcd, with gRPC
	Bytes                 // any other protocol with one request at a time per connection
)

// A Direction is a direction of traffic, or both directions.
type Direction int

// The directions of traffic.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// A Request is a request sent by a client.
type Request struct {
	Words   []string // RESP: the command and its arguments
	Method  string   // HTTP2: the method, such as "/etcdserverpb.KV/Txn"
	Message []byte   // HTTP2: the message
	Bytes   []byte   // Bytes: data that arrived together, perhaps only a part of the request
}

// A Blow is a fault that affects a single request.
type Blow int

// The faults that can affect a request.
const (
	LoseRequest Blow = iota // the connection ends, and the server never receives the request
	LoseReply               // the request is carried out; the connection ends before the reply
	HoldRequest             // the server receives the request late
)

// String returns the name of the fault.
func (b Blow) String() string {
	return [...]string{"request lost", "reply lost", "request late"}[b]
}

// A Proxy stands between clients and a server. Its methods are safe for concurrent use, and take
// effect before they return.
type Proxy struct {
	listener net.Listener
	server   string
	protocol Protocol
	running  sync.WaitGroup
	late     sync.WaitGroup // held requests that were delivered and haven't been answered

	mu      sync.Mutex
	links   map[*link]struct{}
	closed  bool
	refused bool
	delay   time.Duration
	blocked Direction
	traps   []*trap
}

// A trap applies a fault to the first request that matches.
type trap struct {
	match   func(Request) bool
	blow    Blow
	sprung  chan struct{} // closed when the request, or its reply, has been lost or held
	open    bool          // the held data was delivered
	caught  *flow         // flow of the held request
	waiting [][]byte      // the held request, and later data that must not overtake it
	silent  bool          // no reply will come, or it can't be told from other replies
	counted bool          // the request counts in Proxy.late
}

// NewProxy returns a proxy for the server at the given address. Call Close when the proxy is no
// longer needed.
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

// Cut ends all connections and drops their delayed traffic. New connections are still accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse sets whether the proxy closes new connections at once.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = refuse
}

// SetDelay sets the delay in each direction. The order of the traffic stays the same.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	for l := range p.links {
		l.poke()
	}
}

// Block stops all traffic in a direction, like a black hole. In that direction, the end of a
// connection isn't passed on, either. Block closes no connections, and new ones can still be made.
func (p *Proxy) Block(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked |= d
}

// Unblock undoes [Proxy.Block]. The blocked traffic is delivered late, even if the client has
// disconnected. Call [Proxy.Cut] first to drop that traffic.
func (p *Proxy) Unblock(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked &^= d
	for l := range p.links {
		l.poke()
	}
}

// LoseReply loses the reply to the next request that matches. The server carries the request out,
// and replies to earlier requests are still delivered. Instead of the reply the client sees the
// connection end. Then the channel that LoseReply returned is closed.
//
// Requests that were sent together with this one, or after it, may or may not have been carried
// out. On an HTTP/2 stream with several messages, any message counts as the reply. Over RESP,
// LoseReply ignores connections that have subscribed.
//
// The function match must not use the proxy.
func (p *Proxy) LoseReply(match func(Request) bool) (lost <-chan struct{}) {
	return p.set(&trap{match: match, blow: LoseReply}).sprung
}

// Hold holds back the next request that matches, and all later traffic on its connection or HTTP/2
// stream. The channel that Hold returns is closed when the request has arrived. The function that
// Hold returns passes the request on to the server, even if the client has disconnected.
// [Proxy.Cut] drops the request.
func (p *Proxy) Hold(match func(Request) bool) (held <-chan struct{}, deliver func()) {
	t := p.set(&trap{match: match, blow: HoldRequest})
	return t.sprung, func() { p.deliver(t) }
}

// Strike applies a fault to one of the requests that arrive from now on, from any client and on any
// connection. n is the index of that request, counted from 0. For [LoseReply], Strike doesn't count
// requests whose replies it can't tell from others (see [Proxy.LoseReply]). The function end
// reports whether the fault has hit a request. If not, end cancels the fault. If a request was
// held, end delivers it, and waits until it is answered.
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

// Settle waits until every request that was held and then delivered has been answered, or its
// connection has ended. It doesn't wait for answers to subscriptions over RESP.
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

// answered records that a held request was answered, or never will be. p.mu is held.
func (t *trap) answered() {
	// the reply may come before the delivery, if the server doesn't read the whole request first
	t.silent = true
	if t.counted {
		t.counted = false
		t.caught.late.Done()
	}
}

// pass adds the next unit to those that are held back. p.mu is held.
func (t *trap) pass(unit []byte) { t.waiting = append(t.waiting, unit) }

// drop removes a trap. p.mu is held.
func (p *Proxy) drop(t *trap) {
	p.traps = slices.DeleteFunc(p.traps, func(other *trap) bool { return other == t })
}

// spring removes and returns the first trap that matches a request, or returns nil. If answered is
// false, the reply can't be told from other replies, so traps that lose a reply don't match. p.mu
// is held.
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

// serve connects a client to the server until both connections have ended.
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

// parsers returns the parsers of the two directions of a link.
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

// link returns a new link, or nil if the proxy accepts no connections.
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

// A link is a client's connection, with the proxy's matching connection to the server.
type link struct {
	*Proxy
	client, server     net.Conn
	toServer, toClient flow
	over               bool // the link was cut
	gone               bool
	holds              []*trap // traps that have held back the link's data
}

// cut ends the link. p.mu is held.
func (l *link) cut() {
	l.over = true
	l.client.Close()
	l.server.Close()
	l.poke()
}

// lose ends the flow at the data to be lost. Earlier data is still delivered. p.mu is held.
func (f *flow) lose(t *trap) {
	if f.shut {
		return
	}
	f.shut = true
	f.poke()
	close(t.sprung)
}

// poke wakes the writers of both directions. p.mu is held.
func (l *link) poke() {
	l.toServer.poke()
	l.toClient.poke()
}

// A flow is one direction of a link. The reader never waits for the writer.
type flow struct {
	*link
	direction Direction
	changed   chan struct{}

	parcels []parcel // read and not yet written
	ended   bool     // nothing more will be read
	shut    bool     // data that arrives is dropped
	held    int      // number of traps that hold back the flow's data
}

// A parcel is a chunk of data with the time of its arrival.
type parcel struct {
	data []byte
	came time.Time
}

// A parser reads units of the protocol and passes them on. A unit is a request, a reply or a frame.
type parser interface {
	// read returns the next unit.
	read() ([]byte, error)

	// pass passes the unit on, unless a trap applies a fault to it. p.mu is held.
	pass(unit []byte)
}

// errProtocol means that a client or the server doesn't speak the protocol.
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
			f.cut() // end the link rather than pass on what can't be parsed
		}
		f.ended = true
		f.poke()
		f.mu.Unlock()
		return
	}
}

// pass queues units for delivery, behind the data that is already under way. p.mu is held.
func (f *flow) pass(units ...[]byte) {
	for _, unit := range units {
		if f.shut {
			return
		}
		f.parcels = append(f.parcels, parcel{unit, time.Now()})
	}
	f.poke()
}

// poke makes the writer look for changes.
func (f *flow) poke() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// write writes data as soon as no fault holds it back, until the flow has ended. If the destination
// no longer accepts data, write drops it.
func (f *flow) write(to net.Conn) {
	for {
		data, wait, more := f.next()
		switch {
		case !more:
			return
		case data == nil:
			f.pause(wait)
		default:
			to.Write(data) // the error doesn't matter, since reads in the other direction also fail
		}
	}
}

// next returns the data to write now or, if there is none, how long to wait for more. If there is
// no data and wait is 0, the caller must wait until something changes. If more is false, the flow
// has ended.
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

// hold makes a trap hold back a request and the units after it. p.mu is held.
func (f *flow) hold(t *trap, request []byte) {
	t.caught = f
	f.holds = append(f.holds, t)
	t.waiting = append(t.waiting, request)
	f.held++
	close(t.sprung)
}
