package main

import "sync"

// Queue is the existing code: a bounded queue without any reference to distributed locks. It needs
// only a sync.Locker, so it could have been written before this module.
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

// Put appends an item. It waits while the queue is full.
func (q *Queue) Put(item int) {
	q.lock.Lock()
	defer q.lock.Unlock()
	for len(q.items) == q.limit {
		q.notFull.Wait()
	}
	q.items = append(q.items, item)
	q.notEmpty.Signal()
}

// Get removes the first item. It waits while the queue is empty.
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
