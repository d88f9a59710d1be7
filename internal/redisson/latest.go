package redisson

import (
	"sync"
	"time"
)

// latest records the plain lock that a session acquired last, until that lock is released. If
// another request of the session is refused because this lock is taken, the session knows the
// reason, and needn't check whether the key is a lock.
type latest struct {
	mu          sync.Mutex
	name, owner string
	until       time.Time
}

// is records the latest lock and its owner. The record is valid until the given time.
func (l *latest) is(name, owner string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.name, l.owner, l.until = name, owner, until
}

// lasts records that the lock with this name may expire at the given time, unless the recorded time
// is earlier. A new time can be the earlier one, since a renewal can shorten the lease.
func (l *latest) lasts(name string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name == name && until.Before(l.until) {
		l.until = until
	}
}

// isNot forgets the latest lock if it has this name, since the session may no longer hold it.
func (l *latest) isNot(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name == name {
		l.name = ""
	}
}

// refuses reports whether the latest lock has the given name and is held by a different owner than
// the given one. A recorded hold that may have expired doesn't count.
func (l *latest) refuses(name, owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name == name && l.owner != owner && time.Now().Before(l.until)
}
