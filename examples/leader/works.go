package main

import (
	"context"
	"fmt"
)

// A line is a process's report of an event in a term. The event is "leads", "works", "lost" or
// "done".
type line struct {
	What string
	Term uint64
	from int
}

// A works represents the resource that the leaders use. It remembers the largest term that it has
// seen. A leader might be paused just after it has checked that it leads. When it continues, it
// uses the resource once more, although another process may lead by then. Only a resource that
// knows the terms can refuse this.
type works struct {
	lines chan line
	term  uint64
}

// hear receives a line of a process.
func (w *works) hear(ctx context.Context, from int, l line) {
	l.from = from
	select {
	case w.lines <- l:
	case <-ctx.Done():
	}
}

// await accepts the leaders' work until a leader reports the given event. The term of a new leader
// must be larger than all earlier terms.
func (w *works) await(ctx context.Context, what string) (line, error) {
	for {
		select {
		case l := <-w.lines:
			if l.What == "leads" && l.Term <= w.term {
				return l, fmt.Errorf("term %d comes after %d", l.Term, w.term)
			}
			if l.Term < w.term && l.What == "works" {
				continue // refused, since the term is stale
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

// goOn waits until the leader has worked several times.
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
