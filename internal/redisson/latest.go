package redisson

import (
	"sync"
	"time"
)

// latest is what a session has acquired last, if that is a plain lock and wasn't given back since. Who is refused by it
// need not look what it is.
type latest struct {
	mu          sync.Mutex
	name, owner string
	until       time.Time
}

// is notes an acquisition.
func (l *latest) is(name, owner string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.name, l.owner, l.until = name, owner, until
}

// isNot notes that a lock may be another's now.
func (l *latest) isNot(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name == name {
		l.name = ""
	}
}

// refuses says whether it keeps an owner from a lock.
func (l *latest) refuses(name, owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name == name && l.owner != owner && time.Now().Before(l.until)
}
