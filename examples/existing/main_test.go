package main

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := dlock.New(membackend.New())
		defer client.Close()
		for name, lock := range map[string]sync.Locker{
			"sync.Mutex":   new(sync.Mutex),
			"dlock.Locker": client.Locker("queue"),
		} {
			if got := pass(NewQueue(lock, 4)); !strings.HasPrefix(got, "100 of 100 ") {
				t.Errorf("%s: %s", name, got)
			}
		}
	})
}

// While another client holds the lock, the queue's goroutines wait.
func TestOtherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		here, elsewhere := dlock.New(store), dlock.New(store)
		defer here.Close()
		defer elsewhere.Close()
		lock := elsewhere.Locker("queue")
		lock.Lock()
		time.AfterFunc(time.Minute, lock.Unlock)

		start := time.Now()
		pass(NewQueue(here.Locker("queue"), 4))
		if d := time.Since(start); d < time.Minute {
			t.Errorf("items came through after %v, while another client had the lock for a minute",
				d)
		}
	})
}
