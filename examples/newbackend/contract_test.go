//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// TestMain makes the test binary run as a process that main starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "count" {
		main()
		os.Exit(0)
	}
	apart.SideBySide(12)
	os.Exit(m.Run())
}

// A store in its own project calls contract.Run with this harness. This repository has many stores,
// so it divides the suite among processes that wait at the same time, and often runs only a part of
// it.
func TestContract(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.Essential, nil, nil)
	wiretest.Suite(t, 4, choice, func() contract.Harness {
		return contract.Harness{NewStore: newStore}
	})
}

func newStore(t *testing.T) contract.Store {
	dir := newDir(t)
	const foreign = "not a lock"
	return contract.Store{
		Backend: func() backend.Backend {
			// a second backend on the directory, as another process would have
			b, err := NewDirBackend(dir)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		PutForeign: func(name string) {
			if err := os.WriteFile(lockPath(dir, name), []byte(foreign), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		ForeignIntact: func(name string) bool {
			text, err := os.ReadFile(lockPath(dir, name))
			return err == nil && string(text) == foreign
		},
		Wipe: func() { wipe(t, dir) },
	}
}

// wipe removes all locks.
func wipe(t *testing.T, dir string) {
	unlock, err := dirSession{dir}.guard()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	files, err := filepath.Glob(filepath.Join(dir, "*.json*")) // includes the files of tokens
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// newDir returns a directory for a case. When it is removed, a late step of a closed session may
// still create a file, so the removal is repeated.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "newbackend")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 100 {
			if err = os.RemoveAll(dir); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Error(err)
	})
	return dir
}

const lease = time.Minute // for locks that should not expire during a test

// Free locks leave no files, and names of any kind stay in the directory.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := NewDirBackend(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := b.Open()
	names := []string{
		"a", "A", "a/b", "../../a", "..", "/etc/a", ".guard", ".new", "\x00\xff",
		strings.Repeat("long", 1000),
	}
	for _, owner := range []string{"\xff", "\xfe", "ann"} { // only one of them can hold a lock
		for _, name := range names {
			res, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Name: name, Owner: owner, Lease: lease,
			})
			if err != nil || res.Acquired != (owner == "\xff") {
				t.Errorf("Acquire %.20q by %q: %+v, %v", name, owner, res, err)
			}
		}
	}
	if n := len(files(t, dir)); n != len(names) {
		t.Errorf("%d locks are held, and have %d files", len(names), n)
	}
	for _, name := range names {
		res, err := s.Release(t.Context(), backend.ReleaseRequest{
			Name: name, Owner: "\xff", Lease: lease,
		})
		if err != nil || res.Outcome != backend.Freed {
			t.Errorf("Release %.20q: %+v, %v", name, res, err)
		}
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("all locks are free, and have files: %q", left)
	}
}

// files returns the files in the directory, except the two that all steps use.
func files(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".guard" && e.Name() != ".new" {
			names = append(names, e.Name())
		}
	}
	return names
}

// A directory that can't be used is reported at once, without a wait.
func TestUnusableDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	b, err := NewDirBackend(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err = b.Open().Acquire(t.Context(), backend.AcquireRequest{
		Name: "a", Owner: "ann", Lease: lease,
	})
	if kind := backend.KindOf(err); err == nil || kind != backend.Refused {
		t.Errorf(
			"Acquire in a directory that was removed: %v, of kind %v; want one of kind Refused",
			err, kind)
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	if err := run(t.Context()); err != nil {
		t.Fatal(err)
	}
}
