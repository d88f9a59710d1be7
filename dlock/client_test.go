package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

func TestTablesAreEmptyWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		ctx := context.Background()
		for i := range 10_000 {
			l := c.Locker(fmt.Sprint("name", i))
			mustTry(t, l)
			l.Unlock()
		}
		empty(t, c)

		// Waiters that get in, that give up, and a hold that is lost before it is unlocked.
		l := c.Locker("x")
		mustTry(t, other.Locker("x"), FixedLease(time.Second))
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := l.Do(ctx, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if ok, err := c.Locker("x").TryLock(ctx, Wait(time.Millisecond)); ok || err != nil {
					t.Errorf("TryLock of a lock that is held = %v, %v", ok, err)
				}
			})
		}
		all.Wait()
		owned := WithOwner(ctx, NewOwner())
		if err := l.LockContext(owned, FixedLease(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := l.UnlockContext(owned); !errors.Is(err, ErrLost) {
			t.Fatalf("unlock of a hold whose lease is over: %v", err)
		}
		time.Sleep(2 * DefaultLease) // an attempt that was cut short is taken back for a lease
		empty(t, c)
	})
}

// These make up most of the memory of a lock that is held, or waited for.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the sizes are those of a machine of 64 bits")
	}
	held := unsafe.Sizeof(hold{}) + unsafe.Sizeof(claim{}) + unsafe.Sizeof(object{})
	if held > 288 {
		t.Errorf("a hold, a claim and an object take %d bytes, more than 288", held)
	}
	if call := unsafe.Sizeof(acquisition{}); call > 384 {
		t.Errorf("an acquisition takes %d bytes, more than 384", call)
	}
}

func TestNewID(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	shape := regexp.MustCompile(
		fmt.Sprintf("^%s/%d/[A-Z2-7]{16}$", regexp.QuoteMeta(host), os.Getpid()))
	a, b := newID(), newID()
	if !shape.MatchString(a) || a == b {
		t.Errorf("client ids %q, %q", a, b)
	}
}

func TestNewPanicsOnWhatItCannotUse(t *testing.T) {
	coarse := newScript(membackend.New()).with(backend.Limits{
		MinLease: 2 * time.Second, LeaseStep: time.Second,
	})
	for name, c := range map[string]struct {
		b    backend.Backend
		opt  Option
		says string
	}{
		"nil backend":     {nil, WithClientID("a"), "backend is nil"},
		"nil option":      {membackend.New(), nil, "option is nil"},
		"empty client id": {membackend.New(), WithClientID(""), "client id is empty"},
		"nil logger":      {membackend.New(), WithLogger(nil), "logger is nil"},
		"no lease":        {membackend.New(), WithLease(0), "shorter than 1ms"},
		"short lease": {
			membackend.New(), WithLease(time.Millisecond - 1), "shorter than 1ms",
		},
		"less than no hand-over": {membackend.New(), WithHandover(-1), "is negative"},
		"endless hand-over": {
			membackend.New(), WithHandover(math.MaxInt64), "longer than ten years",
		},
		"below limits": {coarse, WithLease(time.Second), "store's minimum of 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, c.says) ||
					!strings.HasPrefix(p, "dlock: New: ") {
					t.Errorf("panic %q, want one that says %q", p, c.says)
				}
			}()
			New(c.b, c.opt)
		})
	}
}

// Names leave nothing behind once nobody uses them any more.
func TestManyNames(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	ctx := t.Context()
	use := func(names, parties int) {
		var all sync.WaitGroup
		for first := range parties {
			all.Go(func() {
				for i := range names / parties {
					name := strconv.Itoa(first) + ":" + strconv.Itoa(i)
					l, other := c.Locker(name), c.Locker(name)
					l.Lock()
					if ok, err := other.TryLock(ctx); ok || err != nil {
						t.Errorf("TryLock of what another holds = %v, %v", ok, err)
					}
					l.Unlock()
				}
			})
		}
		all.Wait()
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // also frees what pools let go of
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const parties = 8
	const names = 100_000 // of which a byte each would be noticed
	use(1000, parties)
	before := heap()
	use(names, parties)
	after := heap()
	for range 100 { // the cleanups of Lockers run when they come to it
		if after <= before+100_000 {
			break
		}
		time.Sleep(10 * time.Millisecond)
		after = heap()
	}
	if after > before+100_000 {
		t.Errorf("%d bytes stay", after-before)
	}
	empty(t, c)
}
