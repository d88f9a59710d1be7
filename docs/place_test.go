package docs_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// The page's holders and waiters.
const (
	web  = "web-3/4711/Hq7sT2mWcXv0Kd9L"
	job  = "job-1/17/p0RzJ5nYbE8uGw3A"
	cron = "cron-2/9/Z4fQx6LkVt1oSi7C"
)

// lease is longer than any test waits: a waiter that isn't told of a release doesn't get in.
const lease = 10 * time.Minute

// A place is a store to run commands on.
type place struct {
	addr    string
	env     []string
	dir     string // where commands are run; a new folder if it is empty
	empty   func(t *testing.T)
	backend func(t *testing.T, user string) backend.Backend
	cluster func() place // another place
}

// A scene sets up the state for commands, and may return a check of the state after them.
type scene func(t *testing.T, p *place) (after func())

// play runs a block of commands.
func (p place) play(t *testing.T, sc scene, block string) string {
	t.Helper()
	p.empty(t)
	after := sc(t, &p)
	if p.dir == "" {
		p.dir = t.TempDir()
	}
	answer := run(t, p.dir, p.env, block)
	if after != nil {
		after()
	}
	return answer
}

// hold has somebody hold a lock.
func (p *place) hold(t *testing.T, kind backend.Kind, name, owner string) backend.AcquireResult {
	t.Helper()
	return p.asks(t, backend.AcquireRequest{Kind: kind, Name: name, Owner: owner}, true)
}

// permits has somebody hold some of ten permits.
func (p *place) permits(t *testing.T, name, owner string, n int) {
	t.Helper()
	p.asks(t, backend.AcquireRequest{Kind: backend.Permits, Name: name, Owner: owner, Permits: n,
		Limit: 10}, true)
}

// queue has somebody ask for a lock in vain, and wait for it, for so long.
func (p *place) queue(t *testing.T, kind backend.Kind, name, owner string, long time.Duration) {
	t.Helper()
	p.asks(t, backend.AcquireRequest{Kind: kind, Name: name, Owner: owner, Place: long}, false)
}

func (p *place) asks(
	t *testing.T, req backend.AcquireRequest, acquired bool,
) backend.AcquireResult {
	t.Helper()
	s := p.backend(t, "").Open()
	t.Cleanup(func() { s.Close() })
	req.Lease = lease
	res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
	if res.Acquired != acquired {
		t.Fatalf("%+v: %+v", req, res)
	}
	return res
}

// frees has somebody unlock.
func (p *place) frees(t *testing.T, kind backend.Kind, name, owner string) {
	t.Helper()
	s := p.backend(t, "").Open()
	defer s.Close()
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), backend.ReleaseRequest{
		Kind: kind, Name: name, Owner: owner, Lease: lease, Permits: 1,
	}))
}

// client returns a client that polls for nothing.
func (p *place) client(t *testing.T, user, id string, logger *slog.Logger) *dlock.Client {
	t.Helper()
	c := dlock.New(p.backend(t, user), dlock.WithClientID(id), dlock.WithLease(lease),
		dlock.WithLogger(logger))
	t.Cleanup(func() { c.Close() })
	return c
}

// An entry is how one gets into a lock and out.
type entry func(ctx context.Context, c *dlock.Client) error

func with(l func(c *dlock.Client) *dlock.Locker) entry {
	return func(ctx context.Context, c *dlock.Client) error {
		l := l(c)
		return l.Do(ctx, func(ctx context.Context) error {
			_, err := l.TTL(ctx)
			return err
		})
	}
}

func plain(name string) entry {
	return with(func(c *dlock.Client) *dlock.Locker { return c.Locker(name) })
}
func fenced(name string) entry {
	return with(func(c *dlock.Client) *dlock.Locker { return c.FencedLocker(name) })
}
func fair(name string) entry {
	return with(func(c *dlock.Client) *dlock.Locker { return c.FairLocker(name) })
}
func read(name string) entry {
	return with(func(c *dlock.Client) *dlock.Locker { return c.RWLocker(name).Reader() })
}
func write(name string) entry {
	return with(func(c *dlock.Client) *dlock.Locker { return c.RWLocker(name).Writer() })
}

// permit is one of ten, or so many.
func permit(name string, n int) entry {
	return func(ctx context.Context, c *dlock.Client) error {
		s := c.Semaphore(name, 10)
		return s.Do(ctx, n, func(ctx context.Context) error {
			_, err := s.Available(ctx)
			return err
		})
	}
}

// latch counts a latch of a name of its own down, and is woken by that.
func latch(prefix string) entry {
	return func(ctx context.Context, c *dlock.Client) error {
		l := c.Latch(prefix + rand.Text())
		if set, err := l.Set(ctx, 2); err != nil || !set {
			return fmt.Errorf("set %v: %w", set, err)
		}
		opened := make(chan error, 1)
		go func() { opened <- l.Wait(ctx) }()
		for range 2 {
			if err := l.CountDown(ctx); err != nil {
				return err
			}
		}
		if err := <-opened; err != nil {
			return err
		}
		n, err := l.Count(ctx)
		if n != 0 {
			return fmt.Errorf("%d are left", n)
		}
		return err
	}
}

// waits starts a waiter, and returns when it is seen to wait. The result waits for it to get in.
func (p *place) waits(t *testing.T, e entry, seen func() bool) (in func()) {
	t.Helper()
	c := p.client(t, "", cron, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- e(ctx, c) }()
	testservers.Until(t, "he waits", seen)
	return func() {
		t.Helper()
		if err := <-done; err != nil {
			t.Errorf("who waits: %v", err)
		}
	}
}

// hears returns a function that waits until a listener is woken and finds the lock free. A waiting
// client would get in without the message, too, but later.
func (p *place) hears(t *testing.T, kind backend.Kind, name string) (heard func()) {
	t.Helper()
	s := p.backend(t, "").Open()
	t.Cleanup(func() { s.Close() })
	l := wiretest.SubscribeTo(t, s.(backend.Notifier), kind, name)
	return func() {
		t.Helper()
		l.Wait()
		p.asks(t, backend.AcquireRequest{Kind: kind, Name: name, Owner: cron + ":11", Permits: 1,
			Limit: 10}, true)
	}
}

// all returns what calls some functions.
func all(checks ...func()) func() {
	return func() {
		for _, check := range checks {
			check()
		}
	}
}

// refused is in what servers say about users that may not.
var refused = regexp.MustCompile(`(?i)NOPERM|permission|can't run`)

// uses has two clients of a user wait for each other, over and over, and no word of it logged. That
// a lock is lost is no matter: a fair one is given for a second, in which a busy machine may stand
// still.
func (p *place) uses(t *testing.T, user string, entries ...entry) {
	t.Helper()
	var log buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	one, two := p.client(t, user, web, logger), p.client(t, user, job, logger)
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	var all sync.WaitGroup
	for _, e := range entries {
		for _, c := range []*dlock.Client{one, two} {
			for range 4 {
				all.Go(func() {
					for range 5 {
						if err := e(ctx, c); err != nil &&
							(!errors.Is(err, dlock.ErrLost) || refused.MatchString(err.Error())) {
							t.Error(err)
						}
					}
				})
			}
		}
	}
	all.Wait()
	one.Close()
	two.Close()
	for line := range strings.Lines(log.String()) {
		if !strings.Contains(line, "lock lost") || refused.MatchString(line) {
			t.Errorf("logged: %s", line)
		}
	}
}

// A buffer may be written by several.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
