package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/examples/sqlite"
)

func Example() {
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.New(filepath.Join(dir, "locks.db"))
	if err != nil {
		panic(err)
	}
	defer store.Close()
	client := dlock.New(store)
	defer client.Close()
	err = client.FencedLocker("account:7").Do(context.Background(), func(
		ctx context.Context,
	) error {
		token, _ := dlock.Token(ctx)
		fmt.Println("inside, with token", token)
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: inside, with token 1
}

// Several processes start at the same time, when the file doesn't exist yet.
func TestStartedTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks ?#%.db")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			b, err := sqlite.New(file)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			_, err = b.Open().Acquire(t.Context(), backend.AcquireRequest{
				Name: "a", Owner: fmt.Sprint(i), Lease: time.Minute,
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// Tokens and holds still exist after the file is reopened.
func TestReopened(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks.db")
	req := backend.AcquireRequest{Kind: backend.Fenced, Name: "a", Owner: "ann", Lease: time.Minute}
	for want := range 3 {
		b, err := sqlite.New(file)
		if err != nil {
			t.Fatal(err)
		}
		s := b.Open()
		res, err := s.Acquire(t.Context(), req)
		if err != nil || res.Token != uint64(want+1) {
			t.Errorf("Acquire: %+v, %v; want the token %d", res, err, want+1)
		}
		other := req
		other.Owner = "bob"
		if res, err := s.Acquire(t.Context(), other); err != nil || res.Acquired {
			t.Errorf("Acquire by another: %+v, %v", res, err)
		}
		_, err = s.ForceRelease(t.Context(), backend.ForceReleaseRequest{
			Kind: backend.Fenced, Name: "a",
		})
		if err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file that is no database is refused at once, and stays unchanged.
func TestUnusableFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks.db")
	text := strings.Repeat("no database ", 100)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := sqlite.New(file); err == nil {
		t.Error("New on a file that is no database says nothing", b.Close())
	}
	if left, err := os.ReadFile(file); err != nil || string(left) != text {
		t.Errorf("it is %.20q now, %v", left, err)
	}
}
