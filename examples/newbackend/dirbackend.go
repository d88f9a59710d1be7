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

// DirBackend keeps locks in a directory, for the processes of one user on one machine. A lock that is
// held is a file; a lock that is free has none or, if its holder died, one that says when its lease
// ended, until somebody takes the lock again. A fenced lock has a second file beside it, with the last
// token, which stays.
//
// Each step opens the file .guard, waits for the exclusive flock on it, reads the lock's file,
// decides, and writes or removes it. Nobody else, in this process or another, reads or writes a
// lock's file meanwhile, so each step is atomic. If a process dies in the middle, the kernel gives up
// its flock, and the lock's file is the old one or the new one, but nothing in between.
//
// Leases are judged by the machine's wall clock, since that is one clock for all its processes, and
// goes on when none of them lives. The price: when the clock is set forward, or the machine wakes
// from sleep, leases end at once, while their holders, who count on a clock that can't be set and
// sleeps too, believe in them until they next renew; two may be inside then. When it is set back,
// the locks of the dead last longer. A clock that runs less than 1 % too fast or too slow does no
// harm, since dlock keeps that much back. Machines must not share the directory: their clocks
// differ, and on a network file system flock may exclude nobody.
type DirBackend struct {
	dir string
}

// The core finds out with type assertions what else a session can do. This one has neither of the
// optional interfaces: without backend.Notifier waiters poll, at the latest every third of a lease;
// without backend.BatchRenewer each hold is renewed on its own.
var (
	_ backend.Backend = (*DirBackend)(nil)
	_ backend.Session = dirSession{}
)

// NewDirBackend returns a backend on a directory, which is made if there is none.
func NewDirBackend(dir string) (*DirBackend, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir) // so that it stays the same if the process changes its own
	if err != nil {
		return nil, err
	}
	return &DirBackend{dir}, nil
}

// Open returns a session. It has nothing of its own: what a process knows is in the directory.
func (b *DirBackend) Open() backend.Session { return dirSession{b.dir} }

// Limits says which kinds of lock there are beside plain ones. Any lease of whole milliseconds will do.
func (b *DirBackend) Limits() backend.Limits {
	return backend.Limits{Kinds: backend.KindsOf(backend.Fenced)}
}

// lockPath returns the file of a lock. A name may contain slashes, be "..", be too long for a file,
// or differ from another in case only, which a Mac takes for the same. A hash does none of that.
func lockPath(dir, name string) string {
	return filepath.Join(dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(name))))
}

// A lockFile is what the file of a lock contains. A Count of 0 is a lock that is free, and has no file.
type lockFile struct {
	Name    string    // for people who look into the directory
	Owner   []byte    // a string may lose bytes in JSON, and owners must stay distinct
	Count   int       // how often the owner has it
	Expires time.Time // by the wall clock
	Token   uint64    // of a fenced lock: the number of this hold
}

func (l *lockFile) heldBy(owner string) bool { return l.Count > 0 && string(l.Owner) == owner }

type dirSession struct {
	dir string
}

func (s dirSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
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

// nextToken counts one more for a name. It is written before the lock is: a process that dies in
// between leaves out a number, and none is given twice.
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

func (s dirSession) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
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

func (s dirSession) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
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

func (s dirSession) ForceRelease(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
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

// Close has nothing to end: no step leaves anything behind. It releases nothing, as it must not.
func (s dirSession) Close() error { return nil }

// A change is what a step does to the lock's file.
type change int

const (
	unchanged change = iota
	changed
	freed
)

// step does one step on a lock, atomically: do gets the lock as it is at that moment, and decides.
//
// The kinds of error say what the core may assume. Retry: nothing has happened and nothing will.
// Refused: nor would it next time. Unknown, which all other errors are: perhaps it has happened.
// There is no retrying here and no logging; the core does both.
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
	// Waiting for the guard can't be interrupted, but what comes too late need not be done. The core
	// doesn't wait for a step whose context has ended.
	if err := ctx.Err(); err != nil {
		return notDone(err)
	}
	now := time.Now() // not before the guard: who waited for it would judge by an old clock
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
		return os.Remove(path) // Unknown, should it fail
	default:
		return nil
	}
}

// guard waits until nobody else has the directory's guard.
//
// The file is opened anew each time, since a flock belongs to the open file: goroutines that shared
// one would all have it at once. And it is never removed, since whoever waits for the flock on a
// removed file gets it beside the one who has that on the new. That is why this backend has
// one guard for all locks: guards per lock would let steps on different locks overlap, but would
// have to stay for ever.
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
		// Closing alone would do, if no child were being forked that has a copy of f until it execs.
		flock(f, syscall.LOCK_UN)
		f.Close()
		thisProcess.Unlock()
	}, nil
}

// thisProcess orders the steps of this process for Go's memory model, which knows nothing of flock: who
// gets a lock must see what was written by the goroutine that had it before.
var thisProcess sync.Mutex

// flock is the system call, once more if a signal interrupts it.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			return err
		}
	}
}

// read returns what the file of a lock says, or a lockFile whose Count is 0 if the lock is free.
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
		// That is what write may leave if the power fails. Nobody who had the lock is left then.
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

// write replaces the file of a lock. There is no fsync, which costs milliseconds: what a power failure
// undoes was promised to processes that it ended.
func (s dirSession) write(path string, l lockFile) error {
	text, err := json.Marshal(l)
	if err != nil {
		return notDone(err)
	}
	return s.replace(path, text, false)
}

// replace replaces a file. A process that dies in here has replaced it or not: rename is atomic. The
// temporary file has always the same name, which only the one with the guard uses, so that those who
// die leave no more than one. What is durable survives a power failure, as a token must: those who have
// seen it may be on other machines.
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
		return notDone(err) // a disk that is full, for example
	}
	if err := os.Rename(temp, path); err != nil || !durable {
		return err // Unknown, should it fail
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// notDone returns the error of a step that has changed nothing.
func notDone(err error) error {
	kind := backend.Retry
	for _, final := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.ENOTDIR, syscall.EROFS, syscall.ENOSYS, syscall.ENOTSUP} {
		if errors.Is(err, final) {
			kind = backend.Refused // it takes a person to put that right
		}
	}
	return &backend.Error{Kind: kind, Err: err}
}

// conflict returns the error of a step that found something which is no lock, and left it alone.
func conflict(err error) error {
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("%w: %w", backend.ErrConflict, err)}
}
