package main

import (
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A delay is a proxy that forwards data between clients and a server after a delay. It blocks
// threads instead of using time.Sleep, which rounds up to whole milliseconds in an idle Go program.
type delay struct {
	server   string
	oneWay   time.Duration
	listener net.Listener
	threads  int // GOMAXPROCS before newDelay
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newDelay(server string, oneWay time.Duration) (*delay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	const enough = 64 // with a lower GOMAXPROCS, sleeping threads would block other goroutines
	d := &delay{server: server, oneWay: oneWay, listener: l, threads: runtime.GOMAXPROCS(enough)}
	d.running.Go(d.accept)
	return d, nil
}

func (d *delay) addr() string { return d.listener.Addr().String() }

// close stops the proxy and closes its connections. After close is called, clients must not
// connect.
func (d *delay) close() {
	d.listener.Close()
	d.mu.Lock()
	for _, c := range d.conns {
		c.Close()
	}
	d.mu.Unlock()
	d.running.Wait()
	runtime.GOMAXPROCS(d.threads)
}

func (d *delay) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", d.server)
		if err != nil {
			client.Close()
			continue
		}
		d.mu.Lock()
		d.conns = append(d.conns, client, server)
		d.mu.Unlock()
		d.running.Go(func() { d.carry(client, server) })
		d.running.Go(func() { d.carry(server, client) })
	}
}

// A parcel holds data until it is due to be forwarded.
type parcel struct {
	data []byte
	due  time.Time
}

// carry copies data from one connection to the other after the delay, until either is closed.
func (d *delay) carry(from, to net.Conn) {
	parcels := make(chan parcel, 1024)
	d.running.Go(func() {
		defer close(parcels)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			parcels <- parcel{append([]byte(nil), buf[:n]...), time.Now().Add(d.oneWay)}
		}
	})
	for p := range parcels {
		sleepUntil(p.due)
		to.Write(p.data) // a failed write also ends the other direction
	}
	to.Close()
}

// sleepUntil makes the thread sleep.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		tv := unix.NsecToTimeval(int64(left))
		unix.Select(0, nil, nil, nil, &tv) // a signal may end it early
	}
}
