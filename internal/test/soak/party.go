package main

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A setting says what a party is and does. A process of its own is told it as JSON.
type setting struct {
	Number   uint64 // no two have the same
	Store    string
	Addrs    []string
	Cells    string // the file
	Names    []string
	Forced   string // one of them, which may be forced
	Lease    time.Duration
	Handover time.Duration
	Users    int
	Reopens  bool // now and then its client is closed, and another opened
}

// A party is a client of locks with its own connection to the store, and its users.
type party struct {
	setting
	dial  func() (b backend.Backend, hangUp func(), err error)
	cells cells
	tell  func(event)

	last     atomic.Uint64 // number given out
	draining atomic.Bool   // no user begins anything new
	active   atomic.Int64  // users
	users    sync.WaitGroup

	mu     sync.Mutex
	line   *line
	closed bool
}

// A line is a client that is open, or was.
type line struct {
	client *dlock.Client
	hangUp func()
	shared map[use]*dlock.Locker // that all users lock
}

// A use is a kind of Locker for a name.
type use struct {
	name string
	kind backend.Kind
}

func (u use) locker(c *dlock.Client) *dlock.Locker {
	switch u.kind {
	case backend.Fenced:
		return c.FencedLocker(u.name)
	case backend.Read:
		return c.RWLocker(u.name).Reader()
	case backend.Write:
		return c.RWLocker(u.name).Writer()
	case backend.Fair:
		return c.FairLocker(u.name)
	default:
		return c.Locker(u.name)
	}
}

func newParty(s setting, dial func() (backend.Backend, func(), error), c cells, tell func(event)) *party {
	p := &party{setting: s, dial: dial, cells: c, tell: tell}
	p.line = p.open()
	return p
}

// open opens a client. A store that can't be reached at the moment is tried again.
func (p *party) open() *line {
	for {
		b, hangUp, err := p.dial()
		if err != nil {
			time.Sleep(50 * time.Millisecond) // nothing to wait on
			continue
		}
		opts := []dlock.Option{dlock.WithLease(p.Lease), dlock.WithHandover(p.Handover), dlock.WithLogger(slog.New(slog.DiscardHandler))}
		l := &line{client: dlock.New(b, opts...), hangUp: hangUp, shared: make(map[use]*dlock.Locker)}
		for _, name := range p.Names {
			for _, kind := range kindsOf(name) {
				if kind != backend.Permits {
					l.shared[use{name, kind}] = use{name, kind}.locker(l.client)
				}
			}
		}
		return l
	}
}

func (l *line) close() {
	l.client.Close()
	l.hangUp()
}

func (p *party) current() *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.line
}

// reopen closes the client, and puts a new one in its place, while others use it.
func (p *party) reopen() {
	fresh := p.open()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		fresh.close()
		return
	}
	old := p.line
	p.line = fresh
	p.mu.Unlock()
	old.close()
}

// start lets the users do what the seed says, until drain.
func (p *party) start(seed uint64) {
	p.draining.Store(false)
	for i := range p.Users {
		u := &user{party: p, dice: rand.New(rand.NewPCG(seed, p.Number<<8|uint64(i))), owner: dlock.NewOwner()}
		p.active.Add(1)
		p.users.Go(func() {
			defer p.active.Add(-1)
			for !p.draining.Load() {
				u.visit()
				u.pause(20 * time.Millisecond)
			}
		})
	}
}

// drain tells the users to finish what they are at.
func (p *party) drain() { p.draining.Store(true) }

// inside returns how many users have not finished.
func (p *party) inside() int { return int(p.active.Load()) }

// close ends the party. Users who are still there are told that the client is closed.
func (p *party) close() {
	p.mu.Lock()
	p.closed = true
	l := p.line
	p.mu.Unlock()
	l.close()
	p.users.Wait()
}

// next returns a number that nobody else has.
func (p *party) next() uint64 { return p.Number<<40 | p.last.Add(1) }

// cell returns what the lock of that name guards.
func (p *party) cell(name string) *atomic.Uint64 { return &p.cells[slices.Index(p.Names, name)] }
