package dlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

func TestHolderNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), WithClientID("me"))
		defer c.Close()
		ctx := t.Context()
		reader := c.RWLocker("x").Reader()
		var holds []*Hold
		for _, opts := range [][]AcquireOption{
			{HolderNote("a=1")}, {HolderNote("a=1")}, {HolderNote("b")}, nil, nil,
		} {
			h, err := reader.Acquire(ctx, opts...)
			must(t, err)
			holds = append(holds, h)
		}
		if holds[3].HolderID() != holds[4].HolderID() {
			t.Error("readers without a note share what they have, and these don't")
		}
		time.Sleep(c.Lease()) // renewed as others are
		info, err := c.Inspect(ctx, "x")
		must(t, err)
		var notes []string
		for _, h := range info.Holders {
			if h.Client != "me" || h.Kind != backend.Read {
				t.Errorf("a holder is %+v", h)
			}
			notes = append(notes, h.Note)
		}
		slices.Sort(notes)
		if want := []string{"", "a=1", "a=1", "b"}; !slices.Equal(notes, want) {
			t.Errorf("notes = %q, want %q", notes, want)
		}
		for _, h := range holds {
			must(t, h.Release(ctx))
		}
		mustTry(t, c.RWLocker("x").Writer())
	})
}

// Readers that come right after one with a note must not rest on its claim, which ends with it.
func TestHolderNoteIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New())
		defer c.Close()
		ctx := t.Context()
		rw := c.RWLocker("x")
		must(t, rw.Writer().LockContext(ctx))
		ids := make(chan string, 2)
		for _, opts := range [][]AcquireOption{{HolderNote("a")}, nil} {
			go func() {
				h, err := rw.Reader().Acquire(ctx, opts...)
				must(t, err)
				ids <- h.HolderID()
			}()
			synctest.Wait()
		}
		must(t, rw.Writer().UnlockContext(ctx))
		if a, b := <-ids, <-ids; a == b ||
			strings.Contains(a, " note=a") == strings.Contains(b, " note=a") {
			t.Errorf("the readers have %q and %q", a, b)
		}
	})
}

func TestHolderNoteErrors(t *testing.T) {
	c := New(membackend.New())
	defer c.Close()
	ctx := context.Background()
	for _, note := range []string{"", "a b", "a:b", "ä", "a\n", strings.Repeat("a", maxNote+1)} {
		if _, err := c.RWLocker("x").Reader().Acquire(ctx, HolderNote(note)); err == nil {
			t.Errorf("the note %q is accepted", note)
		}
	}
	for _, l := range []*Locker{c.Locker("x"), c.RWLocker("x").Writer(), c.FairLocker("x")} {
		if err := l.LockContext(ctx, HolderNote("a")); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a note of a %v lock: %v", l.kind, err)
		}
	}
}

func TestReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store), New(store)
		defer c.Close()
		defer other.Close()
		ctx, cancel := context.WithCancel(t.Context())
		released := c.Locker("x").Released(ctx)
		<-released // the store tells from now on
		for range 3 {
			other.Locker("x").Lock()
			synctest.Wait()
			select {
			case <-released:
				t.Error("told of a release that hasn't been")
			default:
			}
			mustUnlockAll(t, other, "x")
			<-released
		}
		cancel()
		synctest.Wait()
		other.Locker("x").Lock()
		mustUnlockAll(t, other, "x")
		synctest.Wait()
		select {
		case <-released:
			t.Error("told after the context has ended")
		default:
		}
	})
}

func mustUnlockAll(t *testing.T, c *Client, name string) {
	t.Helper()
	if ok, err := c.Locker(name).ForceUnlock(t.Context()); !ok || err != nil {
		t.Fatalf("ForceUnlock = %t, %v", ok, err)
	}
}
