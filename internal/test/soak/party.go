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

// A setting describes a party. A child process gets it as JSON.
type setting struct {
	Number   uint64 // unique
	Store    string
	Addrs    []string
	Cells    string // the file of the cells
	Names    []string
	Forced   string // the lock that users force-unlock
	Lease    time.Duration
	Handover time.Duration
	Users    int
	Reopens  bool // users sometimes close the client and open another
}

// A party is a client with its own connection to the store, and the client's users.
type party struct {
	setting
	dial  func() (b backend.Backend, hangUp func(), err error)
	cells cells
	tell  func(event)

	last     atomic.Uint64 // the last number that next returned
	draining atomic.Bool   // users begin no new visits
	active   atomic.Int64  // the number of users that haven't finished
	users    sync.WaitGroup

	mu     sync.Mutex
	line   *line
	closed bool
}

// A line is a client together with its connection to the store.
type line struct {
	client *dlock.Client
	hangUp func()
	shared map[use]*dlock.Locker // Lockers that all users share
}

// A use is the name of a lock, and the kind of lock that the name is used for.
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

func newParty(
	s setting, dial func() (backend.Backend, func(), error), c cells, tell func(event),
) *party {
	p := &party{setting: s, dial: dial, cells: c, tell: tell}
	p.line = p.open()
	return p
}

// open opens a client. It retries if the store can't be reached.
func (p *party) open() *line {
	for {
		b, hangUp, err := p.dial()
		if err != nil {
			time.Sleep(50 * time.Millisecond) // poll, since nothing signals that the store is back
			continue
		}
		opts := []dlock.Option{
			dlock.WithLease(p.Lease), dlock.WithHandover(p.Handover),
			dlock.WithLogger(slog.New(slog.DiscardHandler)),
		}
		l := &line{
			client: dlock.New(b, opts...), hangUp: hangUp, shared: make(map[use]*dlock.Locker),
		}
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

// reopen replaces the client with a new one and closes the old one, which users may still be using.
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

// start starts the users. Each of them uses one lock after another, until drain is called. The seed
// determines their random choices.
func (p *party) start(seed uint64) {
	p.draining.Store(false)
	for i := range p.Users {
		u := &user{
			party: p, dice: rand.New(rand.NewPCG(seed, p.Number<<8|uint64(i))),
			owner: dlock.NewOwner(),
		}
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

// drain makes the users finish after their current visits.
func (p *party) drain() { p.draining.Store(true) }

// inside returns the number of users that haven't finished.
func (p *party) inside() int { return int(p.active.Load()) }

// close ends the party. The calls of unfinished users fail, since the client is closed.
func (p *party) close() {
	p.mu.Lock()
	p.closed = true
	l := p.line
	p.mu.Unlock()
	l.close()
	p.users.Wait()
}

// next returns a number that is unique among all processes.
func (p *party) next() uint64 { return p.Number<<40 | p.last.Add(1) }

// cell returns the cell guarded by the named lock.
func (p *party) cell(name string) *atomic.Uint64 { return &p.cells[slices.Index(p.Names, name)] }
