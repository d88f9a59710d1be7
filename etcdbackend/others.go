package etcdbackend

import "sync"

// others are the locks that were found to be held by others when they were last seen. Who wants one of
// them looks before it writes: to be refused by a transaction is a write, too.
type others struct {
	mu    sync.Mutex
	names map[string]struct{}
}

// mostOthers bounds what is remembered. To forget costs a write that is in vain.
const mostOthers = 4096

func (o *others) hold(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names == nil || len(o.names) >= mostOthers {
		o.names = make(map[string]struct{})
	}
	o.names[name] = struct{}{}
}

func (o *others) left(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.names, name)
}

func (o *others) have(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, held := o.names[name]
	return held
}
