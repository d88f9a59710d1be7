package main

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// service is a slow service that counts simultaneous calls.
type service struct {
	mu     sync.Mutex
	now    int
	most   int
	served int // the number of completed calls
	began  chan struct{}
}

// victimsCalls is the number of calls, and of permits, of the process that is killed. Its calls
// hang until it is dead.
const victimsCalls = atOnce - 1

func newService() *service { return &service{began: make(chan struct{}, victimsCalls)} }

func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.enter(1)
	defer s.enter(-1)
	if r.URL.Path == "/hang" {
		s.began <- struct{}{}
		<-r.Context().Done() // until the caller has died
		return
	}
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served++
}

func (s *service) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += n
	s.most = max(s.most, s.now)
}

func (s *service) figures() (served, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served, s.most
}

// await waits until n calls hang.
func (s *service) await(ctx context.Context, n int) error {
	for range n {
		select {
		case <-s.began:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
