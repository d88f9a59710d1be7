package membackend

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Forget loses all locks and counters, as a server without persistence does in a restart. It wakes
// nobody.
func (b *Backend) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.objects)
	b.token = 0
}

// Size returns how many entries the tables have, and whether a timer is running.
func (b *Backend) Size() (objects, subs int, timer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.objects), len(b.subs), b.due != time.Time{}
}

// Holds returns how many holds, notes and places in line the table has under a name, those that are
// over among them.
func (b *Backend) Holds(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.objects[name]
	n := len(o.readers) + len(o.notes) + len(o.permits) + len(o.line)
	if o.alone.count > 0 {
		n++
	}
	return n
}

// Listed returns how many names a session keeps for the next page of a list.
func Listed(s backend.Session) int {
	m := s.(*session)
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if m.list == nil {
		return 0
	}
	return len(m.list.names)
}
