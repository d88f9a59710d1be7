package goroutine

import (
	"sync"
	"testing"
)

func TestBothWaysAgree(t *testing.T) {
	if !fast {
		t.Log("goid doesn't know this release of Go: stack traces are parsed")
	}
	if ID() != parsed() {
		t.Fatalf("ID() = %d, the stack trace says %d", ID(), parsed())
	}
}

func TestNoTwoGoroutinesShareAnID(t *testing.T) {
	var (
		mu   sync.Mutex
		seen = map[uint64]bool{ID(): true}
		all  sync.WaitGroup
		stay = make(chan struct{})
	)
	for range 100 {
		all.Go(func() {
			mu.Lock()
			if seen[ID()] {
				t.Errorf("goroutine id %d was seen twice", ID())
			}
			seen[ID()] = true
			if len(seen) == 101 {
				close(stay)
			}
			mu.Unlock()
			<-stay
		})
	}
	all.Wait()
}

func BenchmarkID(b *testing.B) {
	for b.Loop() {
		ID()
	}
}

func BenchmarkParsed(b *testing.B) {
	for b.Loop() {
		parsed()
	}
}
