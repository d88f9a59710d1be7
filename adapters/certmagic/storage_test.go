package certmagiclock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	certmagiclock "github.com/seed951563bd/distsync/adapters/certmagic"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/overview"
	"github.com/seed951563bd/distsync/internal/test/stores"
	"github.com/seed951563bd/distsync/membackend"
)

func TestMain(m *testing.M) { fleet.Main(m, replica) }

func TestTheProgramOfTheOverview(t *testing.T) { overview.Compiles(t) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onEach runs a test on each store. replica returns the storage of a replica: a folder that all
// share, and a client of its own.
func onEach(t *testing.T, run func(t *testing.T, replica func() *certmagiclock.Storage)) {
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		files := &certmagic.FileStorage{Path: t.TempDir()}
		run(t, func() *certmagiclock.Storage { return certmagiclock.New(files, connect()) })
	})
}

func mustTry(t *testing.T, s *certmagiclock.Storage, name string, want bool) {
	t.Helper()
	got, err := s.TryLock(t.Context(), name)
	must(t, err)
	if got != want {
		t.Errorf("TryLock of %q: %v", name, got)
	}
}

func TestANameIsLockedOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, replica func() *certmagiclock.Storage) {
		a, b := replica(), replica()
		ctx := t.Context()
		must(t, a.Lock(ctx, "example.com"))
		mustTry(t, a, "example.com", false)
		mustTry(t, b, "example.com", false)
		mustTry(t, b, "example.org", true)
		must(t, b.Unlock(ctx, "example.org"))

		// In the same process and in another one, each waits until it is its turn.
		got := make(chan *certmagiclock.Storage, 3)
		for _, s := range []*certmagiclock.Storage{a, a, b} {
			go func() {
				if err := s.Lock(ctx, "example.com"); err != nil {
					t.Error(err)
				}
				got <- s
			}()
		}
		must(t, a.Unlock(ctx, "example.com"))
		for range 3 {
			s := <-got
			mustTry(t, a, "example.com", false)
			mustTry(t, b, "example.com", false)
			must(t, s.Unlock(ctx, "example.com"))
		}
		mustTry(t, b, "example.com", true)
		must(t, b.Unlock(ctx, "example.com"))
	})
}

func TestWhoWaitsGivesUpWithTheContext(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, replica func() *certmagiclock.Storage) {
		a, b := replica(), replica()
		must(t, a.Lock(t.Context(), "example.com"))
		for _, s := range []*certmagiclock.Storage{a, b} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Lock(ctx, "example.com") }()
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, dlock.ErrHeld) {
				t.Errorf("a Lock that was given up returns %v", err)
			}
		}
		must(t, a.Unlock(t.Context(), "example.com"))
		mustTry(t, b, "example.com", true)
		must(t, b.Unlock(t.Context(), "example.com"))
	})
}

// The owner that the context names makes no difference: certmagic unlocks with other contexts than
// it locks with.
func TestTheContextDoesNotSayWhoLocks(t *testing.T) {
	t.Parallel()
	files, client := &certmagic.FileStorage{Path: t.TempDir()},
		stores.NewClient(t, membackend.New(), dlock.WithGoroutineOwners())
	s := certmagiclock.New(files, client)
	ctx := dlock.WithOwner(t.Context(), dlock.NewOwner())
	must(t, s.Lock(ctx, "example.com"))
	for _, other := range []*certmagiclock.Storage{s, certmagiclock.New(files, client)} {
		if locked, err := other.TryLock(ctx, "example.com"); err != nil || locked {
			t.Errorf("an owner has locked a name twice: %v, %v", locked, err)
		}
	}
	done := make(chan error)
	go func() { done <- s.Unlock(context.Background(), "example.com") }()
	must(t, <-done)
	mustTry(t, s, "example.com", true)
	must(t, s.Unlock(ctx, "example.com"))
}

func TestTheUnlockWorksThoughTheContextHasEnded(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, replica func() *certmagiclock.Storage) {
		a, b := replica(), replica()
		ctx, cancel := context.WithCancel(t.Context())
		must(t, a.Lock(ctx, "example.com"))
		cancel()
		must(t, a.Unlock(ctx, "example.com"))
		mustTry(t, b, "example.com", true)
		must(t, b.Unlock(ctx, "example.com"))
	})
}

func TestUnlockOfWhatIsNotLocked(t *testing.T) {
	t.Parallel()
	s := certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()},
		stores.NewClient(t, membackend.New()))
	if err := s.Unlock(t.Context(), "example.com"); !errors.Is(err, dlock.ErrNotHeld) {
		t.Errorf("it returns %v", err)
	}
	if err := s.RenewLockLease(t.Context(), "example.com", time.Minute); !errors.Is(err,
		dlock.ErrNotHeld) {
		t.Errorf("the renewal returns %v", err)
	}
	must(t, s.Lock(t.Context(), "example.com"))
	must(t, s.Unlock(t.Context(), "example.com"))
	if err := s.Unlock(t.Context(), "example.com"); !errors.Is(err, dlock.ErrNotHeld) {
		t.Errorf("the second returns %v", err)
	}
}

// certmagic calls RenewLockLease before each attempt to obtain a certificate, for a month.
func TestRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		files := &certmagic.FileStorage{Path: t.TempDir()}
		client := stores.NewClient(t, store)
		a := certmagiclock.New(files, stores.NewClient(t, store))
		b := certmagiclock.New(files, client)
		renew := func() error { return a.RenewLockLease(t.Context(), "example.com", time.Minute) }
		lose := func() {
			t.Helper()
			_, err := client.Locker("certmagic:example.com").ForceUnlock(t.Context())
			must(t, err)
		}

		must(t, a.Lock(t.Context(), "example.com"))
		time.Sleep(24 * time.Hour)
		must(t, renew())
		mustTry(t, b, "example.com", false)

		lose()
		mustTry(t, b, "example.com", true)
		time.Sleep(dlock.DefaultLease)
		if err := renew(); !errors.Is(err, dlock.ErrLost) || !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("the lock is another's, and a renewal returns %v", err)
		}
		must(t, b.Unlock(t.Context(), "example.com"))
		must(t, renew()) // it is had again
		mustTry(t, b, "example.com", false)
		mustTry(t, a, "example.com", false)

		lose()
		time.Sleep(dlock.DefaultLease)
		mustTry(t, a, "example.com", false) // it stays shut
		must(t, a.Unlock(t.Context(), "example.com"))
		mustTry(t, a, "example.com", true)
		must(t, a.Unlock(t.Context(), "example.com"))
	})
}

// CleanUpOwnLocks of a process that exits unlocks whatever it has, from wherever. It is global, and
// so nothing runs beside it.
func TestCertmagicCleansUp(t *testing.T) {
	store := membackend.New()
	s := certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, stores.NewClient(t, store))
	begun, end := make(chan struct{}), make(chan struct{})
	cfg := newConfig(t, s, &issuer{hook: func() { close(begun); <-end }})
	done := make(chan error, 1)
	go func() { done <- cfg.ObtainCertSync(context.Background(), "example.com") }()
	<-begun
	certmagic.CleanUpOwnLocks(t.Context(), zap.NewNop())
	for held, err := range stores.NewClient(t, store).Locks(t.Context(), "") {
		must(t, err)
		t.Errorf("after it has cleaned up %q is locked", held.Name)
	}
	close(end)
	must(t, <-done)
}

func TestWhatItIsCalled(t *testing.T) {
	s := certmagiclock.New(&certmagic.FileStorage{Path: "/certs"},
		stores.NewClient(t, membackend.New()))
	if got := fmt.Sprint(s); !strings.Contains(got, "FileStorage:/certs") {
		t.Errorf("it is called %q", got)
	}
}

func TestWithoutAStorageOrAClient(t *testing.T) {
	for _, make := range []func(){
		func() { certmagiclock.New(nil, stores.NewClient(t, membackend.New())) },
		func() { certmagiclock.New(&certmagic.FileStorage{}, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a Storage was made of nothing")
				}
			}()
			make()
		}()
	}
}
