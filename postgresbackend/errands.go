package postgresbackend

import "sync"

// errands are what goes on when steps have returned. The zero value is none.
type errands struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when there are none; nil if nobody waits for that
}

// run runs f in a goroutine. It may be called while somebody waits.
func (e *errands) run(f func()) {
	e.mu.Lock()
	e.n++
	e.mu.Unlock()
	go func() {
		defer e.done()
		f()
	}()
}

func (e *errands) done() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n--; e.n == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// wait returns when there are none.
func (e *errands) wait() {
	e.mu.Lock()
	if e.n == 0 {
		e.mu.Unlock()
		return
	}
	if e.idle == nil {
		e.idle = make(chan struct{})
	}
	idle := e.idle
	e.mu.Unlock()
	<-idle
}
