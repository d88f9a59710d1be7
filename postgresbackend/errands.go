package postgresbackend

import "sync"

// errands is a group of goroutines that may outlive the steps that started them. The zero value is
// ready to use.
type errands struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when the last goroutine ends; nil if nothing waits for that
}

// run runs f in a goroutine. It may be called concurrently with wait.
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

// wait waits until no errand is running.
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
