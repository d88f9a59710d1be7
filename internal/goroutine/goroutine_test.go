package goroutine

import (
	"sync"
	"testing"
)

func TestNoTwoGoroutinesShareAnID(t *testing.T) {
	const n = 100
	ids := make(chan uint64, n)
	stay := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			ids <- ID()
			<-stay // an id may come again once its goroutine has ended
		})
	}
	seen := map[uint64]bool{ID(): true}
	for range n {
		id := <-ids
		if seen[id] {
			t.Errorf("goroutine id %d was seen twice", id)
		}
		seen[id] = true
	}
	close(stay)
	all.Wait()
}

func BenchmarkID(b *testing.B) {
	for b.Loop() {
		ID()
	}
}
