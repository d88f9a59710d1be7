package dlock

import (
	"sync"

	"github.com/seed951563bd/distsync/backend"
)

// RWLocker is a distributed read-write lock that behaves like a [sync.RWMutex]: any number of
// readers have it together, in any number of processes, or one writer alone. Its two sides are
// Lockers, with all that a Locker has: contexts, owners, leases, Do. The comments of [Locker] say
// what their calls return.
//
// Readers of one client share one hold of the store. A reader that comes within the hand-over time
// (see [WithHandover]) joins without asking the store, unless a writer of the same client waits.
// Later ones ask the store, so that writers elsewhere get their turn. If the hold is lost, all that
// share it are told. For as long, the lock also passes from a writer to waiting readers of its
// client, and back; meanwhile readers elsewhere find it held by a writer.
//
// A reader that came after a waiting writer doesn't get in before it, unless it joins. So writers
// aren't starved. But two reads of different owners that wait for each other around a waiting
// writer stand still, as with sync.RWMutex: pass the context on, so that a read within a read
// re-enters.
//
// A writer may also read, with the context of the write or an owner. When it then gives up the
// write it keeps reading (a downgrade), and others may read, too. For a downgrade lock both sides
// with the context of an owner, since a context from the hold of the write ends with it. To write
// while reading is an error, [ErrUpgrade], since two such readers would wait for each other. Plain
// calls name no owner: Lock and RLock of one RWLocker in one goroutine wait for each other, as with
// sync.RWMutex.
//
// Each side answers for itself, and is forced by itself. [Locker.IsLocked] of the reader is false
// during a write, and ForceUnlock of one side frees nothing while only the other is held. A lock
// that passed from a writer to readers of its client is a write to other clients and to the writing
// side. To the reading side of that client it is a read, and its ForceUnlock frees it.
//
// A plain or fenced lock of the same name is another lock, which a store can't keep beside this
// one: [ErrConflict]. Making an RWLocker is cheap and does no I/O. It is safe for concurrent use,
// and must not be copied.
type RWLocker struct {
	reader, writer Locker
}

// RWLocker returns a read-write lock of that name. Each call returns a new one, which is a variable
// of its own, as with [Client.Locker]. If the store has no read-write locks, every error wraps
// [errors.ErrUnsupported].
func (c *Client) RWLocker(name string) *RWLocker {
	rw := new(RWLocker)
	rw.reader.make(c, backend.Read, name)
	rw.writer.make(c, backend.Write, name)
	return rw
}

// Lock waits until it has the lock for writing: see [Locker.Lock].
func (rw *RWLocker) Lock() { rw.Writer().Lock() }

// Unlock gives back what Lock took: see [Locker.Unlock].
func (rw *RWLocker) Unlock() { rw.Writer().Unlock() }

// RLock waits until it has the lock for reading: see [Locker.Lock]. Any number of goroutines may
// have it at once.
func (rw *RWLocker) RLock() { rw.Reader().Lock() }

// RUnlock gives back what one RLock took: see [Locker.Unlock].
func (rw *RWLocker) RUnlock() { rw.Reader().Unlock() }

// RLocker returns the reading side as a [sync.Locker]: always the same, [RWLocker.Reader].
func (rw *RWLocker) RLocker() sync.Locker { return rw.Reader() }

// Reader returns the reading side: always the same Locker. Its plain calls are counted: any number
// of goroutines may lock it, and each unlocks it once. A lost hold doesn't shut it: as many of the
// next unlocks as that hold had readers return [ErrLost], whoever makes them. So a late unlock of a
// lost read never gives back another's read. Unlock a read with a [FixedLease], too, after it has
// ended. Otherwise another's next unlock is taken for it, and that other read goes on being
// renewed. For a read that nobody is to unlock use [Locker.Acquire], an [Owner], or an RWLocker of
// its own.
func (rw *RWLocker) Reader() *Locker { return &rw.mustBeMade().reader }

// Writer returns the writing side: always the same Locker.
func (rw *RWLocker) Writer() *Locker { return &rw.mustBeMade().writer }

// Name returns the lock's name.
func (rw *RWLocker) Name() string { return rw.mustBeMade().reader.name }

func (rw *RWLocker) mustBeMade() *RWLocker {
	if rw == nil || rw.reader.client == nil {
		panic("dlock: an RWLocker that is nil, or wasn't made by a Client")
	}
	return rw
}
