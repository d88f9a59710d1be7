package etcdbackend

import "sync"

// names is a set of lock names. When it is full, it forgets all of them, which costs one needless
// request for each lock.
type names struct {
	mu  sync.Mutex
	set map[string]struct{}
}

// mostNames bounds the number of remembered names.
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
