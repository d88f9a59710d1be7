package recipes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A pipes is a network in which time is virtual.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "pipes"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// get sends a request, and returns the status of its answer.
func (p *pipes) get() (int, error) {
	transport := &http.Transport{DialContext: p.dial}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://service/")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// serving is a service that has begun a request and a message, which have a lock each, and of which
// the latter takes a second longer. Its store's client can be closed.
type serving struct {
	*service
	line
	queue chan string
	net   *pipes
	next  *dlock.Client // another process

	mu   sync.Mutex
	done []string
}

func (s *serving) did(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, what)
}

func (s *serving) Close() error {
	s.did(fmt.Sprintf("store closed, and its client before: %v", s.locks.Stats().Closed))
	s.down.Store(true)
	return nil
}

func begin(t *testing.T, work func(context.Context) error) *serving {
	store := membackend.New()
	s := &serving{queue: make(chan string, 2), net: newPipes(), next: replicaOn(t, store)}
	s.Backend = store
	locks := replicaOn(t, s)
	s.service = &service{
		server: &http.Server{Handler: http.HandlerFunc(func(
			w http.ResponseWriter, r *http.Request,
		) {
			if err := locks.Locker("lock:request").Do(r.Context(), work); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})},
		queue: s.queue,
		handle: func(ctx context.Context, message string) {
			err := locks.Locker("lock:message").Do(ctx, func(ctx context.Context) error {
				return cmp.Or(work(ctx), sleep(ctx, time.Second))
			})
			s.did(fmt.Sprint(message, ": ", err))
		},
		locks: locks,
		store: s,
	}
	return s
}

// atWork is work that takes so long, and looks at its context.
func atWork(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error { return sleep(ctx, d) }
}

// both says how long it takes the other process to get both locks.
func (s *serving) both(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	both := dlock.All(s.next.Locker("lock:request"), s.next.Locker("lock:message"))
	if err := both.LockContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	both.Unlock()
	return took
}

// endIn begins a request and a message, ends the service's context, and returns when the service
// has returned, with the status that was answered and how long it took.
func (s *serving) endIn(
	t *testing.T, run func(context.Context, net.Listener) error,
) (status int, took time.Duration, err error) {
	ctx, terminate := context.WithCancel(t.Context())
	defer terminate()
	answered, returned := make(chan int, 1), make(chan error, 1)
	go func() { returned <- run(ctx, s.net) }()
	go func() {
		status, err := s.net.get()
		if err != nil {
			status = unanswered
		}
		answered <- status
	}()
	s.queue <- "first"
	time.Sleep(time.Second)
	s.queue <- "second"
	terminate()
	began := time.Now()
	err = <-returned
	took = time.Since(began)
	select {
	case status = <-answered:
	case <-time.After(time.Second):
		status = unanswered
	}
	return status, took, err
}

func TestAShutdownThatClosesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The process ends when the service has returned: nobody in it gets any further.
		s := begin(t, func(context.Context) error { time.Sleep(time.Hour); return nil })
		if status, took, err := s.endIn(t, s.runWrong); status != unanswered || took != 0 ||
			err != nil {
			t.Errorf("status %d after %v; %v", status, took, err)
		}
		if waited := s.both(t) + time.Second; waited.Round(time.Second) != 29*time.Second {
			// endIn has waited before
			t.Errorf("another waited for %v", waited)
		}
		time.Sleep(time.Hour)
		s.server.Close()
	})
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, atWork(5*time.Second))
		status, took, err := s.endIn(t, s.run)
		if status != http.StatusOK || took < 4*time.Second || took > 6*time.Second || err != nil {
			t.Errorf("status %d after %v, %v", status, took, err)
		}
		if want := []string{"first: <nil>",
			"store closed, and its client before: true"}; !slices.Equal(s.done, want) {
			t.Errorf("done: %q, want %q", s.done, want)
		}
		if waited := s.both(t); waited > 0 {
			t.Errorf("another waited for %v", waited)
		}
		if err := s.locks.Locker("lock:other").
			LockContext(t.Context()); !errors.Is(err, dlock.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestShutdownOfWhatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, atWork(time.Hour))
		status, took, err := s.endIn(t, s.run)
		if status != http.StatusServiceUnavailable || took < 20*time.Second ||
			took > 21*time.Second || err != nil {
			t.Errorf("status %d after %v, %v", status, took, err)
		}
		if want := []string{"first: context canceled",
			"store closed, and its client before: true"}; !slices.Equal(s.done, want) {
			t.Errorf("done: %q, want %q", s.done, want)
		}
		if waited := s.both(t); waited > 0 {
			t.Errorf("another waited for %v", waited)
		}
	})
}

func TestAServerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, atWork(time.Second))
		s.net.Close()
		if err := s.run(t.Context(), s.net); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}
