package dlock

import (
	"sync"

	"github.com/seed951563bd/distsync/backend"
)

// RWLocker is a distributed read-write lock with the manners of a [sync.RWMutex]: any number of readers have it
// together, in any number of processes, or one writer alone. Its two sides are Lockers, with all that a Locker
// has: contexts, owners, leases, Do. What their calls return is in the comments there.
//
// Readers of one client share what the store grants to one of them. Who comes within the hand-over time (see
// [WithHandover]) joins without a word to the store, unless a writer of the same client waits; later ones ask
// the store, so that writers elsewhere get their turn. If the hold is lost, each who shares it is told. For as long as that a
// lock also passes from a writer to the readers of its client who wait, and back: readers elsewhere find it held by a writer meanwhile.
//
// A reader that came after a waiting writer doesn't get in before it, but for those who join. So writers aren't starved, and
// two reads of different parties that wait for each other around a waiting writer stand still, as with
// sync.RWMutex: pass the context to what reads within a read, so that it re-enters.
//
// The party that writes may also read, if it is known: with the context of the write, or an owner. When it then
// gives up the write it keeps reading (a downgrade), and others may read, too: for that lock both sides with the context of an
// owner, since one that comes from the hold of the write ends with it. The other way round is an error,
// [ErrUpgrade]: two readers that both want to write would wait for each other. Plain calls name no party: who
// calls Lock and RLock of one RWLocker in one goroutine waits for himself, as with sync.RWMutex.
//
// Each side answers for itself, and is forced by itself: [Locker.IsLocked] of the reader is false
// while somebody writes, and ForceUnlock of one frees nothing while only the other is held. What
// has passed from a writer to readers of its client is a writer's to all other clients, and to the
// writing side; to the reading side of that client it is what its readers have, and is forced by
// it.
//
// A plain or fenced lock of the same name is another lock, which a store can't keep beside this one: [ErrConflict].
// Making an RWLocker is cheap and does no I/O. It is safe for concurrent use, and must not be copied.
type RWLocker struct {
	reader, writer Locker
}

// RWLocker returns a read-write lock of that name. Each call returns a new one, and each is a variable
// of its own, as with [Client.Locker]. A store that has no read-write locks answers every call with an error that wraps
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

// RLock waits until it has the lock for reading: see [Locker.Lock]. Any number of goroutines may.
func (rw *RWLocker) RLock() { rw.Reader().Lock() }

// RUnlock gives back what one RLock took: see [Locker.Unlock].
func (rw *RWLocker) RUnlock() { rw.Reader().Unlock() }

// RLocker returns the reading side as a [sync.Locker]: always the same, [RWLocker.Reader].
func (rw *RWLocker) RLocker() sync.Locker { return rw.Reader() }

// Reader returns the reading side: always the same Locker. Its plain calls count: any number of
// goroutines may lock it, and each unlocks it once. A hold that is lost doesn't shut it: as many of
// the next unlocks as that had readers return [ErrLost], whoever makes them and however late. So a
// late unlock of a lost read never gives back what another has got since then. It also means that a
// read with a fixed [FixedLease] is to be unlocked when that has ended, too: otherwise the next unlock,
// which is another's, is taken for it, and what that other has is renewed on. What nobody is to
// unlock belongs to [Locker.Acquire], an [Owner], or an RWLocker of its own.
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
