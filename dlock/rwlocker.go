package dlock

import (
	"sync"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// RWLocker is a distributed read-write lock that behaves like a [sync.RWMutex]. Either any number
// of readers hold it together, in any number of processes, or one writer holds it alone. Its two
// sides are Lockers, with everything that a Locker offers, such as contexts, owners, leases and Do.
// See [Locker] for what their methods return.
//
// Readers of one client share one hold in the store. A reader that comes within the hand-over time
// (see [WithHandover]) joins without a request to the store, unless a writer of the same client
// waits. Later readers ask the store, so that writers elsewhere get their turn. If the hold is
// lost, all readers that share it are told. During the hand-over time a writer also passes the lock
// to waiting readers of its client, and these readers pass it on to the next writer. To other
// clients the lock then appears to be held by a writer.
//
// A reader that came after a waiting writer doesn't get the lock before that writer, unless the
// reader joins. So writers aren't starved. As with sync.RWMutex, a goroutine that holds a read lock
// must not wait for a second one with another owner: if a writer began to wait in between, the
// second read lock waits for the writer, and the writer for the first. So pass the context on. With
// it, the second call re-enters the read lock.
//
// A writer can also lock for reading, with the context of its write lock or of its owner. When it
// then unlocks the write lock, it keeps the read lock (a downgrade), and others can read as well.
// For a downgrade, lock both sides with the context of an owner, since the context of the write
// lock ends with that lock. A reader that tries to write gets an error, [ErrUpgrade], since two
// such readers would wait for each other. Plain calls have no owner. So an RLock after a Lock in
// the same goroutine waits forever, and so does a Lock after an RLock, as with sync.RWMutex.
//
// The methods of each side concern only that side. [Locker.IsLocked] of the reading side is false
// while a writer holds the lock, and [Locker.ForceUnlock] of one side frees nothing while only the
// other is held. If a writer has passed the lock to readers of its client, other clients and the
// writing side still report that it is held for writing. The reading side of that client reports
// that it is held for reading, and its ForceUnlock frees the lock.
//
// A plain or fenced lock with the same name is a different lock. A store can't have both, so the
// error is [ErrConflict]. Making an RWLocker is cheap and does no I/O. It is safe for concurrent
// use, and must not be copied.
type RWLocker struct {
	reader, writer Locker
}

// RWLocker returns a read-write lock with the given name. Each call returns a new RWLocker, which
// is like a new variable, as with [Client.Locker]. If the store has no read-write locks, every
// error wraps [errors.ErrUnsupported].
func (c *Client) RWLocker(name string) *RWLocker {
	rw := new(RWLocker)
	rw.reader.make(c, protocol.Kind(backend.Read), name)
	rw.writer.make(c, protocol.Kind(backend.Write), name)
	return rw
}

// Lock waits until it acquires the lock for writing. See [Locker.Lock].
func (rw *RWLocker) Lock() { rw.Writer().Lock() }

// Unlock releases the lock for writing. See [Locker.Unlock].
func (rw *RWLocker) Unlock() { rw.Writer().Unlock() }

// RLock waits until it acquires the lock for reading. Any number of goroutines can hold it at once.
// See [Locker.Lock].
func (rw *RWLocker) RLock() { rw.Reader().Lock() }

// RUnlock undoes a single RLock. See [Locker.Unlock].
func (rw *RWLocker) RUnlock() { rw.Reader().Unlock() }

// RLocker returns the reading side as a [sync.Locker]. It is the Locker that [RWLocker.Reader]
// returns.
func (rw *RWLocker) RLocker() sync.Locker { return rw.Reader() }

// Reader returns the reading side, always the same Locker. Any number of goroutines can lock it
// with plain calls, and each unlocks it once. The Locker counts these calls, but doesn't know which
// goroutine made them. After a loss, other goroutines can still lock it. If the lost hold had n
// readers, the next n unlocks return [ErrLost], whichever goroutines call them. So a late unlock of
// a lost read lock never releases another goroutine's read lock. A read lock with a [FixedLease]
// must also be unlocked, even after it has ended. Otherwise the next unlock by another reader is
// taken for the missing one, and the client goes on renewing that other reader's hold. For a read
// lock that is never unlocked, use [Locker.Acquire], an [Owner], or an RWLocker of its own.
func (rw *RWLocker) Reader() *Locker { return &rw.mustBeMade().reader }

// Writer returns the writing side, always the same Locker.
func (rw *RWLocker) Writer() *Locker { return &rw.mustBeMade().writer }

// Name returns the lock's name.
func (rw *RWLocker) Name() string { return rw.mustBeMade().reader.name }

func (rw *RWLocker) mustBeMade() *RWLocker {
	if rw == nil || rw.reader.client == nil {
		panic("dlock: an RWLocker that is nil, or wasn't made by a Client")
	}
	return rw
}
