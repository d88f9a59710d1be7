package main

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// service is slow, and counts who calls it at the same time.
type service struct {
	mu     sync.Mutex
	now    int
	most   int
	served int // to their end
	began  chan struct{}
}

// victimsCalls is for how many calls the process that dies has taken permits: they hang until it is gone.
const victimsCalls = atOnce - 1

func newService() *service { return &service{began: make(chan struct{}, victimsCalls)} }

func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.enter(1)
	defer s.enter(-1)
	if r.URL.Path == "/hang" {
		s.began <- struct{}{}
		<-r.Context().Done() // whoever called has died
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

// await returns when so many calls hang.
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
