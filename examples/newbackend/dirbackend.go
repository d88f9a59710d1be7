//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// DirBackend keeps locks in a directory, for the processes of one user on one machine. A lock that
// is held has a file, and a free lock has none. If the holder has died, the file, which records the
// end of the lease, remains until the lock is acquired again. A fenced lock also has a second file
// with the last token, which remains forever.
//
// Each step opens the file .guard, waits for the exclusive flock on it, reads the lock's file,
// decides, and writes or removes the file. Meanwhile no other goroutine or process reads or writes
// a lock's file, so each step is atomic. If a process dies during a step, the kernel releases its
// flock. The lock's file then has either its old or its new contents.
//
// Leases are measured by the machine's wall clock, because all processes share that clock, and it
// runs even while no process does. This has a disadvantage. When the clock is set forward, or the
// machine wakes from sleep, leases expire early. But their holders use a clock that can't be set
// and that stops during sleep. They rely on their locks until their next renewal, so there may be
// two holders meanwhile. When the clock is set back, the locks of dead holders last longer. A clock
// that is less than 1 % too fast or too slow does no harm, since dlock subtracts that much from a
// lease. Machines must not share the directory, because their clocks differ. Also, flock doesn't
// work on all network file systems.
type DirBackend struct {
	dir string
}

// The core uses type assertions to find a session's capabilities. This session implements none of
// the optional interfaces. Without backend.Notifier, waiters poll, at least every third of a lease.
// Without backend.BatchRenewer, each hold is renewed separately.
var (
	_ backend.Backend = (*DirBackend)(nil)
	_ backend.Session = dirSession{}
)

// NewDirBackend returns a backend that keeps its locks in dir. It creates dir if necessary.
func NewDirBackend(dir string) (*DirBackend, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir) // the process may change its working directory
	if err != nil {
		return nil, err
	}
	return &DirBackend{dir}, nil
}

// Open returns a session. It is stateless, since all state is in the directory.
func (b *DirBackend) Open() backend.Session { return dirSession{b.dir} }

// Limits returns the kinds of lock that are supported besides plain ones. Any lease of whole
// milliseconds is allowed.
func (b *DirBackend) Limits() backend.Limits {
	return backend.Limits{Kinds: backend.KindsOf(backend.Fenced)}
}

// lockPath returns the path of a lock's file. A lock's name may contain slashes, be "..", be too
// long for a file name, or differ from another name only in case, which some file systems ignore. A
// hash avoids all of these problems.
func lockPath(dir, name string) string {
	return filepath.Join(dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(name))))
}

// A lockFile is the contents of a lock's file. If Count is 0, the lock is free and has no file.
type lockFile struct {
	Name    string    // for people who look into the directory
	Owner   []byte    // not a string, because JSON changes invalid UTF-8
	Count   int       // the number of the owner's acquisitions
	Expires time.Time // by the wall clock
	Token   uint64    // the token of a fenced lock's hold
}

func (l *lockFile) heldBy(owner string) bool { return l.Count > 0 && string(l.Owner) == owner }

type dirSession struct {
	dir string
}

func (s dirSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	var res backend.AcquireResult
	err := s.step(ctx, req.Kind, req.Name, func(l *lockFile, now time.Time) (change, error) {
		switch {
		case l.Count > 0 && !l.heldBy(req.Owner):
			res.Remaining = l.Expires.Sub(now)
			return unchanged, nil
		case l.Count == 0 && req.Kind == backend.Fenced:
			var err error
			if l.Token, err = s.nextToken(req.Name); err != nil {
				return unchanged, err
			}
		}
		l.Owner = []byte(req.Owner)
		l.Count++
		l.Expires = now.Add(req.Lease)
		res.Acquired, res.Count, res.Token = true, l.Count, l.Token
		return changed, nil
	})
	return res, err
}

// nextToken returns the next token for a name. The token is written before the lock. A process that
// dies in between skips a token, but no token is used twice.
func (s dirSession) nextToken(name string) (uint64, error) {
	path := lockPath(s.dir, name) + ".token"
	var last uint64
	text, err := os.ReadFile(path)
	if err == nil {
		last, err = strconv.ParseUint(string(text), 10, 64)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, notDone(err)
	}
	if err := s.replace(path, strconv.AppendUint(nil, last+1, 10), true); err != nil {
		return 0, notDone(err)
	}
	return last + 1, nil
}

func (s dirSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	var res backend.ReleaseResult
	err := s.step(ctx, req.Kind, req.Name, func(l *lockFile, now time.Time) (change, error) {
		switch {
		case !l.heldBy(req.Owner):
			res.Outcome = backend.NotHeld
			return unchanged, nil
		case l.Count == 1:
			res.Outcome = backend.Freed
			return freed, nil
		}
		l.Count--
		l.Expires = now.Add(req.Lease)
		res.Outcome = backend.Left
		return changed, nil
	})
	return res, err
}

func (s dirSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	var res backend.RenewResult
	err := s.step(ctx, req.Kind, req.Name, func(l *lockFile, now time.Time) (change, error) {
		if !l.heldBy(req.Owner) {
			return unchanged, nil
		}
		l.Expires = now.Add(req.Lease)
		res.Held = true
		return changed, nil
	})
	return res, err
}

func (s dirSession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	var res backend.ForceReleaseResult
	err := s.step(ctx, req.Kind, req.Name, func(l *lockFile, now time.Time) (change, error) {
		if l.Count == 0 {
			return unchanged, nil
		}
		res.Released = true
		return freed, nil
	})
	return res, err
}

func (s dirSession) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	var res backend.LookResult
	err := s.step(ctx, req.Kind, req.Name, func(l *lockFile, now time.Time) (change, error) {
		if l.Count == 0 {
			return unchanged, nil
		}
		res.Held, res.Remaining = true, l.Expires.Sub(now)
		if l.heldBy(req.Owner) {
			res.Count = l.Count
		}
		return unchanged, nil
	})
	return res, err
}

// Close does nothing, since there is nothing to close. It must not release locks.
func (s dirSession) Close() error { return nil }

// A change is a step's effect on the lock's file.
type change int

const (
	unchanged change = iota
	changed
	freed
)

// step carries out a step on a lock atomically. It calls do with the current contents of the lock's
// file. Then, depending on what do returns, it writes the file, removes it, or leaves it unchanged.
//
// The kind of an error tells the core what it may assume. Retry means that the step was not carried
// out, and won't be. Refused means, in addition, that another attempt would also fail. All other
// errors have the kind Unknown, which means that the step may have been carried out. This code
// neither retries nor logs, because the core does both.
func (s dirSession) step(
	ctx context.Context, kind backend.Kind, name string,
	do func(l *lockFile, now time.Time) (change, error),
) error {
	if kind != backend.Exclusive && kind != backend.Fenced {
		return backend.UnknownKind("a directory", kind)
	}
	unlock, err := s.guard()
	if err != nil {
		return notDone(err)
	}
	defer unlock()
	// The wait for the guard can't be interrupted. If the context has ended meanwhile, the step is
	// not carried out, since the core no longer waits for it.
	if err := ctx.Err(); err != nil {
		return notDone(err)
	}
	now := time.Now() // read after the wait for the guard, since an earlier time would be stale
	path := lockPath(s.dir, name)
	l, err := read(path, now)
	if err != nil {
		return err
	}
	l.Name = name
	what, err := do(&l, now)
	switch {
	case err != nil:
		return err
	case what == changed:
		return s.write(path, l)
	case what == freed:
		return os.Remove(path) // an error is of kind Unknown
	default:
		return nil
	}
}

// guard locks the directory's guard, waiting if necessary.
//
// The file is opened each time. A flock belongs to an open file, so goroutines that shared one
// would all have the flock at the same time. The file is never removed. Otherwise a process that
// was waiting for the flock on the removed file could get it while another process has the flock on
// the new file. That is why this backend has one guard for all locks. With a guard for each lock,
// steps on different locks could overlap, but the guards' files would have to remain forever.
func (s dirSession) guard() (unlock func(), err error) {
	thisProcess.Lock()
	f, err := os.OpenFile(filepath.Join(s.dir, ".guard"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		thisProcess.Unlock()
		return nil, err
	}
	err = flock(f, syscall.LOCK_EX)
	if err != nil {
		f.Close()
		thisProcess.Unlock()
		return nil, err
	}
	return func() {
		// Closing the file isn't enough, because a forked child has a copy of f until it calls
		// exec.
		flock(f, syscall.LOCK_UN)
		f.Close()
		thisProcess.Unlock()
	}, nil
}

// thisProcess orders the steps of this process for Go's memory model, which doesn't cover flock. A
// new holder must see the writes of the goroutine that held the lock before.
var thisProcess sync.Mutex

// flock calls flock(2), and repeats it if a signal interrupts it.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			return err
		}
	}
}

// read returns the content of a lock's file, or a lockFile whose Count is 0 if the lock is free.
func read(path string, now time.Time) (lockFile, error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return lockFile{}, nil
	case errors.Is(err, syscall.EISDIR):
		return lockFile{}, conflict(err)
	case err != nil:
		return lockFile{}, notDone(err)
	case len(text) == 0:
		// A power failure during write may leave an empty file, but it also kills the holder, so
		// the lock is free.
		return lockFile{}, nil
	}
	var l lockFile
	if err := json.Unmarshal(text, &l); err != nil {
		return lockFile{}, conflict(err)
	}
	if l.Count < 1 || l.Expires.IsZero() {
		return lockFile{}, conflict(errors.New("no holder"))
	}
	if !now.Before(l.Expires) {
		return lockFile{}, nil
	}
	return l, nil
}

// write replaces the file of a lock. It doesn't use fsync, which takes milliseconds. A power
// failure can undo holds, but it also ends their holders.
func (s dirSession) write(path string, l lockFile) error {
	text, err := json.Marshal(l)
	if err != nil {
		return notDone(err)
	}
	return s.replace(path, text, false)
}

// replace replaces a file atomically, by a rename: if a process dies here, the file has either the
// old or the new content. The temporary file always has the same name, and is used only while the
// guard is held, so dead processes leave at most one such file. If durable is true, the new content
// survives a power failure. Tokens need that, because clients on other machines may have seen them.
func (s dirSession) replace(path string, text []byte, durable bool) error {
	temp := filepath.Join(s.dir, ".new")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return notDone(err)
	}
	_, err = f.Write(text)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return notDone(err) // for example, because the disk is full
	}
	if err := os.Rename(temp, path); err != nil || !durable {
		return err // an error is of kind Unknown
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// notDone returns the error for a step that has changed nothing.
func notDone(err error) error {
	kind := backend.Retry
	for _, final := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.ENOTDIR, syscall.EROFS,
		syscall.ENOSYS, syscall.ENOTSUP} {
		if errors.Is(err, final) {
			kind = backend.Refused // only a person can fix this
		}
	}
	return &backend.Error{Kind: kind, Err: err}
}

// conflict returns the error for a step that found something other than a lock, and left it
// unchanged.
func conflict(err error) error {
	return &backend.Error{
		Kind: backend.Refused, Err: fmt.Errorf("%w: %w", backend.ErrConflict, err),
	}
}
