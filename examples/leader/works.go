package main

import (
	"context"
	"fmt"
)

// A line is what a process says: that it "leads", "works", has "lost" or is "done" with a term.
type line struct {
	What string
	Term uint64
	from int
}

// works is where leaders work, and remembers the largest term that it has heard of. One that was paused just after it had looked
// whether it leads works once more when it goes on, and only a resource that knows of terms can refuse that.
type works struct {
	lines chan line
	term  uint64
}

// hear passes on what a process says.
func (w *works) hear(ctx context.Context, from int, l line) {
	l.from = from
	select {
	case w.lines <- l:
	case <-ctx.Done():
	}
}

// await lets leaders work until one of them says that. A term that isn't larger than all before is an error.
func (w *works) await(ctx context.Context, what string) (line, error) {
	for {
		select {
		case l := <-w.lines:
			if l.What == "leads" && l.Term <= w.term {
				return l, fmt.Errorf("term %d comes after %d", l.Term, w.term)
			}
			if l.Term < w.term && l.What == "works" {
				continue // refused: it is stale
			}
			w.term = max(w.term, l.Term)
			if l.What == what {
				return l, nil
			}
		case <-ctx.Done():
			return line{}, context.Cause(ctx)
		}
	}
}

// goOn lets a leader work for a while.
func (w *works) goOn(ctx context.Context, leader line) error {
	for range 5 {
		l, err := w.await(ctx, "works")
		if err != nil {
			return err
		}
		if l.from != leader.from || l.Term != leader.Term {
			return fmt.Errorf("%v works, and %v leads", l, leader)
		}
	}
	return nil
}
