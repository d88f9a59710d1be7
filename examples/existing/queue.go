package main

import "sync"

// Queue is the existing code: a bounded queue that knows nothing of distributed locks. It would be
// the same if it were written before there was this module; all that it asks for is a sync.Locker.
type Queue struct {
	lock     sync.Locker
	notEmpty *sync.Cond
	notFull  *sync.Cond
	items    []int
	limit    int
}

// NewQueue returns a queue that holds at most limit items and is guarded by lock.
func NewQueue(lock sync.Locker, limit int) *Queue {
	return &Queue{
		lock:     lock,
		notEmpty: sync.NewCond(lock),
		notFull:  sync.NewCond(lock),
		limit:    limit,
	}
}

// Put appends an item, and waits as long as the queue is full.
func (q *Queue) Put(item int) {
	q.lock.Lock()
	defer q.lock.Unlock()
	for len(q.items) == q.limit {
		q.notFull.Wait()
	}
	q.items = append(q.items, item)
	q.notEmpty.Signal()
}

// Get removes the first item, and waits as long as there is none.
func (q *Queue) Get() int {
	q.lock.Lock()
	defer q.lock.Unlock()
	for len(q.items) == 0 {
		q.notEmpty.Wait()
	}
	item := q.items[0]
	q.items = q.items[1:]
	q.notFull.Signal()
	return item
}
