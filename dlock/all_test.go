package dlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

// lockers returns a Locker of a client for each of the names.
func lockers(c *Client, names ...string) []*Locker {
	var all []*Locker
	for _, name := range names {
		all = append(all, c.Locker(name))
	}
	return all
}

// wantHeld fails the test unless, in the store, those of the names are held by anybody that are given.
func wantHeld(t *testing.T, c *Client, names []string, held ...string) {
	t.Helper()
	for _, name := range names {
		is, err := c.Locker(name).IsLocked(t.Context())
		if err != nil || is != slices.Contains(held, name) {
			t.Errorf("%q is held: %v (error %v), and of %q only %q should be", name, is, err, names, held)
		}
	}
}

func TestAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		names := []string{"a", "b", "c"}
		m := All(lockers(c, names...)...)
		m.Lock()
		wantHeld(t, other, names, names...)
		m.Unlock()
		wantHeld(t, other, names)

		mustTry(t, other.Locker("b"))
		if ok, err := All(lockers(c, names...)...).TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock where one is held: %v, %v", ok, err)
		}
		wantHeld(t, other, names, "b")
		began := time.Now()
		err := m.LockContext(t.Context(), Wait(time.Second))
		var e *Error
		if !errors.Is(err, ErrNotAcquired) || !errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable) || !errors.As(err, &e) || e.Name != "b" || e.Op != "lock" {
			t.Errorf("LockContext where one is held: %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("the wait took %v", took)
		}
		wantHeld(t, other, names, "b")
		empty(t, c)
		_ = context.Background
	})
}
