package recipes

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A service handles requests and messages. It uses locks for both.
type service struct {
	server *http.Server
	queue  <-chan string
	handle func(ctx context.Context, message string)
	locks  *dlock.Client
	store  io.Closer // the lock store's client, a *redis.Client
}

// runWrong is called with the context of signal.NotifyContext. When it returns, the program exits.
func (s *service) runWrong(ctx context.Context, l net.Listener) error {
	go s.server.Serve(l)
	go s.work(ctx, context.WithoutCancel(ctx))
	<-ctx.Done()
	return errors.Join(s.locks.Close(), s.store.Close()) // releases no lock
}

// run is called with the context of signal.NotifyContext. When it returns, the program exits.
func (s *service) run(ctx context.Context, l net.Listener) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	life, cut := context.WithCancel(context.WithoutCancel(ctx)) // of work that has begun
	defer cut()
	s.server.BaseContext = func(net.Listener) context.Context { return life } // of each request
	failed := make(chan error, 1)
	go func() { failed <- s.server.Serve(l) }()
	var workers sync.WaitGroup
	workers.Go(func() { s.work(ctx, life) })

	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	stop()                                           // no new work is begun
	defer time.AfterFunc(20*time.Second, cut).Stop() // slow work is told to give up, by its context
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 25*time.Second)
	defer cancel()
	err = errors.Join(err, s.server.Shutdown(end)) // begun requests finish, and release their locks
	workers.Wait()
	return errors.Join(err, s.locks.Close(), s.store.Close()) // not needed now; in this order
}

// work handles messages until ctx ends. After that, it may finish the current message, but only
// until the context life ends.
func (s *service) work(ctx, life context.Context) {
	for ctx.Err() == nil {
		select {
		case message := <-s.queue:
			s.handle(life, message)
		case <-ctx.Done():
		}
	}
}
