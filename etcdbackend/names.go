package etcdbackend

import "sync"

// names are names of locks that something is known of. To forget it costs a request that is in vain.
type names struct {
	mu  sync.Mutex
	set map[string]struct{}
}

// mostNames bounds what is remembered.
const mostNames = 4096

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.set == nil || len(n.set) >= mostNames {
		n.set = make(map[string]struct{})
	}
	n.set[name] = struct{}{}
}

func (n *names) remove(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.set, name)
}

func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, has := n.set[name]
	return has
}
