package lockdebug

import (
	"context"
	"sync"

	"github.com/seed951563bd/distsync/dlock"
)

// Limits on the requests that ask who holds the locks in the list of waits.
const (
	mostAsked     = 20 // the number of locks
	shortPatience = patience / 2
)

// A waited identifies a lock that a client waits for.
type waited struct {
	client int // the client's index, from 1
	name   string
}

// tellHolders fills in the holders of the locks that calls wait for. It asks the stores
// concurrently, for at most half a second, and only about the first mostAsked locks. For other
// locks HeldBy stays nil.
func (h *handler) tellHolders(ctx context.Context, q query, lists ...[]wait) {
	if q.unasked {
		return
	}
	var locks []waited
	seen := make(map[waited]bool)
	for _, list := range lists {
		for _, w := range list {
			if k := (waited{w.client, w.Name}); !seen[k] && len(locks) < mostAsked {
				seen[k] = true
				locks = append(locks, k)
			}
		}
	}
	known := h.askHolders(ctx, locks)
	for _, list := range lists {
		for i, w := range list {
			list[i].HeldBy = known[waited{w.client, w.Name}]
		}
	}
}

// askHolders asks the stores for the holders of locks. It returns the answers that arrive in time.
func (h *handler) askHolders(ctx context.Context, locks []waited) map[waited]*heldBy {
	ctx, cancel := context.WithTimeout(ctx, shortPatience)
	defer cancel()
	known := make(map[waited]*heldBy)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, k := range locks {
		all.Go(func() {
			info, err := h.clients[k.client-1].Inspect(ctx, k.name)
			if err != nil {
				return
			}
			by := h.newHeldBy(info)
			mu.Lock()
			defer mu.Unlock()
			known[k] = by
		})
	}
	all.Wait()
	return known
}

func (h *handler) newHeldBy(info dlock.LockInfo) *heldBy {
	shown := info.Holders[:min(len(info.Holders), mostInRow)]
	return &heldBy{h.newHolders(shown), len(info.Holders) - len(shown) + info.More}
}
