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
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// TestMain lets the test binary be one of the processes that main starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "count" {
		main()
		os.Exit(0)
	}
	wiretest.SideBySide(6)
	os.Exit(m.Run())
}

// In a project of its own, a store calls contract.Run with this harness. Here, with many stores, the
// suite is divided among processes that wait side by side, and often only some of it is run.
func TestContract(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.Essential, nil, nil)
	wiretest.Suite(t, depth.Of(2, 4, 4), choice, func() contract.Harness {
		return contract.Harness{NewStore: newStore}
	})
}

func newStore(t *testing.T) contract.Store {
	dir := t.TempDir()
	const foreign = "not a lock"
	return contract.Store{
		Backend: func() backend.Backend { // a second one on the directory is what another process has
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
	files, err := filepath.Glob(filepath.Join(dir, "*.json*")) // and the tokens
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

const lease = time.Minute // for locks that are not meant to end by themselves

// Free locks leave nothing behind, and names of any kind stay in the directory.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	b, err := NewDirBackend(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := b.Open()
	names := []string{"a", "A", "a/b", "../../a", "..", "/etc/a", ".guard", ".new", "\x00\xff", strings.Repeat("long", 1000)}
	for _, owner := range []string{"\xff", "\xfe", "ann"} { // of which only one can have a lock
		for _, name := range names {
			res, err := s.Acquire(t.Context(), backend.AcquireRequest{Name: name, Owner: owner, Lease: lease})
			if err != nil || res.Acquired != (owner == "\xff") {
				t.Errorf("Acquire %.20q by %q: %+v, %v", name, owner, res, err)
			}
		}
	}
	if n := len(files(t, dir)); n != len(names) {
		t.Errorf("%d locks are held, and have %d files", len(names), n)
	}
	for _, name := range names {
		res, err := s.Release(t.Context(), backend.ReleaseRequest{Name: name, Owner: "\xff", Lease: lease})
		if err != nil || res.Outcome != backend.Freed {
			t.Errorf("Release %.20q: %+v, %v", name, res, err)
		}
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("all locks are free, and have files: %q", left)
	}
}

// files returns the files of locks, and what shouldn't be there.
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

// A directory that can't be used is reported at once, and not waited for.
func TestUnusableDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	b, err := NewDirBackend(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err = b.Open().Acquire(t.Context(), backend.AcquireRequest{Name: "a", Owner: "ann", Lease: lease})
	if kind := backend.KindOf(err); err == nil || kind != backend.Refused {
		t.Errorf("Acquire in a directory that was removed: %v, of kind %v; want one of kind Refused", err, kind)
	}
}

func TestProcesses(t *testing.T) {
	if err := run(t.Context()); err != nil {
		t.Fatal(err)
	}
}
