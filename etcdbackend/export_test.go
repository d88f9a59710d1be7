package etcdbackend

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// CheckEvery makes a session check a silent stream of watches more often than users need.
func CheckEvery(d time.Duration) Option {
	return func(o *options) { o.checkEvery = d }
}

// Remembered returns how many holds a session remembers.
func Remembered(s backend.Session) int { return s.(*session).holds.len() }

// Idle returns how many leases a session keeps for the next holds.
func Idle(s backend.Session) (n int) {
	ls := s.(*session).leases
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, sh := range ls.shelves {
		n += len(sh.idle)
	}
	return n
}

// Age makes the leases that a session keeps for the next holds older.
func Age(s backend.Session, by time.Duration) {
	ls := s.(*session).leases
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, sh := range ls.shelves {
		for i := range sh.idle {
			sh.idle[i].since = sh.idle[i].since.Add(-by)
		}
	}
}

// Delay sets how long a session waits, after a lock was freed, for each session that began to wait
// earlier.
func Delay(s backend.Session, delay time.Duration) {
	ws := s.(*session).waiters
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.delay = delay
}
