// Existing gives a distributed lock to code that was written for a sync.Mutex: see queue.go, which
// knows only sync.Locker and uses it with sync.Cond.
//
//	go run ./examples/existing
//
// What changes is who is kept out: with a sync.Mutex the other goroutines of this process, with a
// dlock.Locker whoever uses the same store. Three things do not change:
//
//   - A sync.Cond wakes goroutines of this process only. Another process that takes the same lock
//     keeps this queue waiting, but can't Signal it.
//   - The items are in this process's memory. A distributed lock guards what several processes
//     share, a file or a row of a database, say; it shares nothing itself.
//   - Lock returns no error and Unlock has no way to say that the lock was lost meanwhile. dlock
//     logs that. Code that can be changed should call Do, whose context ends with the lock.
package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func main() {
	fmt.Println("guarded by a sync.Mutex:", pass(NewQueue(new(sync.Mutex), 4)))

	store := membackend.New() // or redisbackend.New(…), for other processes to see it
	here, elsewhere := dlock.New(store), dlock.New(store)
	defer here.Close()
	defer elsewhere.Close()

	queue := NewQueue(here.Locker("queue"), 4)
	fmt.Println("guarded by a dlock.Locker:", pass(queue))

	// A client of its own is like a process of its own. While it has the lock, no goroutine here
	// gets in.
	lock := elsewhere.Locker("queue")
	lock.Lock()
	const pause = 500 * time.Millisecond
	time.AfterFunc(pause, lock.Unlock) // any goroutine may unlock, as with a sync.Mutex
	fmt.Printf("the same, while another client has the lock for %v: %v\n", pause, pass(queue))
}

// pass lets several goroutines pass items through a queue, and says how that went.
func pass(q *Queue) string {
	const workers, each = 4, 25
	var all sync.WaitGroup
	var mu sync.Mutex
	got, start := 0, time.Now()
	for range workers {
		all.Go(func() {
			for range each {
				q.Put(1)
			}
		})
		all.Go(func() {
			for range each {
				item := q.Get()
				mu.Lock()
				got += item
				mu.Unlock()
			}
		})
	}
	all.Wait()
	took := time.Since(start).Round(10 * time.Microsecond)
	return fmt.Sprintf("%d of %d items came through in %v", got, workers*each, took)
}
