package lockdebug

import (
	"context"
	"sync"

	"github.com/seed951563bd/distsync/dlock"
)

// What the stores are asked at most about locks that are waited for.
const (
	mostAsked     = 20 // locks
	shortPatience = patience / 2
)

// waited is a lock that a client waits for.
type waited struct {
	client int // from 1
	name   string
}

// tellHolders fills in who has the locks that are waited for. The stores are asked about the first
// of them only, all at once, and for half a second; of the others it isn't known.
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

// askHolders asks the stores who has locks, and returns what they have answered in time.
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
