package recipes

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func TestNamesThatCollide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := replicaOn(t, membackend.New())
		one := client.Locker(lockNameWrong("acme:eu", "7"))
		one.Lock()
		defer one.Unlock()
		if ok, err := client.Locker(lockNameWrong("acme", "eu:7")).TryLock(t.Context()); ok ||
			err != nil {
			t.Errorf("another tenant's lock was free: %v, %v", ok, err)
		}
	})
}

func TestNamesThatDoNotCollide(t *testing.T) {
	texts := []string{"", "a", "A", ":", "::", "a:", ":a", "%3A", "%", "a%3A", "{a}", "a b", "a+b",
		"ä", "\xff", "=",
		strings.Repeat("x", 100), strings.Repeat("x", 101), strings.Repeat("x", 1000),
		part(strings.Repeat("x", 101))}
	seen := make(map[string]string)
	for _, tenant := range texts {
		for _, order := range texts {
			name, of := lockName(tenant, order), fmt.Sprintf("%q of %q", order, tenant)
			if other, ok := seen[name]; ok {
				t.Errorf("%s is the name of %s and of %s", name, of, other)
			}
			seen[name] = of
			if strings.Count(name, ":") != 3 || strings.ContainsAny(name, "{} ") ||
				len(name) > 1000 {
				t.Errorf("the name of %s is %q", of, name)
			}
		}
	}
	if name := lockName("acme", "ORD-2026-7"); name != "lock:orders:acme:ORD-2026-7" {
		t.Errorf("an ordinary name is %q", name)
	}
}

func TestRowsShareLocks(t *testing.T) {
	client := dlock.New(membackend.New())
	defer client.Close()
	names := make(map[string]bool)
	for row := range 20_000 {
		names[rowLock(client, fmt.Sprint(row)).Name()] = true
	}
	if len(names) != 1000 {
		t.Errorf("%d names", len(names))
	}
	if name := rowLock(client, "4711").Name(); name != "lock:rows:759" {
		t.Errorf("the name of row 4711 is %q", name)
	}
}

// Programs with the old name, with the new one, and with both exclude each other, but for the first
// two.
func TestALockIsRenamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		old := dlock.All(replicaOn(t, store).Locker(lockNameWrong("acme", "7")))
		both := renamed(replicaOn(t, store), "acme", "7")
		next := dlock.All(replicaOn(t, store).Locker(lockName("acme", "7")))
		for _, pair := range [][2]*dlock.MultiLocker{{old, both}, {both, old}, {next, both},
			{both, next}} {
			pair[0].Lock()
			if ok, err := pair[1].TryLock(t.Context()); ok || err != nil {
				t.Errorf("two are inside: %v, %v", ok, err)
			}
			pair[0].Unlock()
		}
	})
}
