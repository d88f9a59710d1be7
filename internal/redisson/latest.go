package redisson

import "sync"

// latest is the plain lock that a session has acquired last, if it hasn't given it back since. What a session holds
// itself it need not look at: that is a plain lock.
type latest struct {
	mu   sync.Mutex
	name string
}

func (l *latest) is(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.name = name
}

func (l *latest) isNot(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name == name {
		l.name = ""
	}
}

func (l *latest) was(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name == name
}
