package main

import (
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A delay is a proxy for a server on which everything takes some time in each direction. It has
// threads sleep, and not goroutines: an idle Go program sleeps for whole milliseconds.
type delay struct {
	server   string
	oneWay   time.Duration
	listener net.Listener
	threads  int // as many ran before
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newDelay(server string, oneWay time.Duration) (*delay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	const enough = 64 // that those who sleep don't keep others from running
	d := &delay{server: server, oneWay: oneWay, listener: l, threads: runtime.GOMAXPROCS(enough)}
	d.running.Go(d.accept)
	return d, nil
}

func (d *delay) addr() string { return d.listener.Addr().String() }

// close ends the proxy and all connections. By then nobody else must make any.
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

// A parcel is what is on its way.
type parcel struct {
	data []byte
	due  time.Time
}

// carry takes what comes from one side to the other, late, until either ends.
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
		to.Write(p.data) // if it can't be, the other direction ends, too
	}
	to.Close()
}

// sleepUntil blocks the thread.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		tv := unix.NsecToTimeval(int64(left))
		unix.Select(0, nil, nil, nil, &tv) // a signal may end it early
	}
}
