// Existing gives a distributed lock to code that was written for a sync.Mutex. That code is in
// queue.go. It needs only a sync.Locker, and uses it with a sync.Cond.
//
//	go run ./examples/existing
//
// A sync.Mutex excludes the other goroutines of this process. A dlock.Locker excludes all users of
// the same store. Three properties don't change:
//
//   - A sync.Cond wakes goroutines of this process only. Another process that takes the same lock
//     keeps this queue waiting, but can't Signal it.
//   - The items are in this process's memory. A distributed lock guards data that several processes
//     share, such as a file or a row of a database. The lock itself shares nothing.
//   - Lock returns no error, and Unlock can't report that the lock was lost in the meantime. dlock
//     logs the loss. Code that can be changed should call Do, whose context ends with the lock.
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

	store := membackend.New() // or redisbackend.New(…), to share the lock with other processes
	here, elsewhere := dlock.New(store), dlock.New(store)
	defer here.Close()
	defer elsewhere.Close()

	queue := NewQueue(here.Locker("queue"), 4)
	fmt.Println("guarded by a dlock.Locker:", pass(queue))

	// Another client is like another process. While it holds the lock, the goroutines of the queue
	// wait.
	lock := elsewhere.Locker("queue")
	lock.Lock()
	const pause = 500 * time.Millisecond
	time.AfterFunc(pause, lock.Unlock) // any goroutine may unlock, as with a sync.Mutex
	fmt.Printf("the same, while another client has the lock for %v: %v\n", pause, pass(queue))
}

// pass makes several goroutines pass items through a queue, and describes the result.
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
