package wiretest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

// Tenants records the context value of each request that [ContextValues] makes.
type Tenants struct {
	mu   sync.Mutex
	seen map[string]any // keyed by the lock's name
}

type tenantKey struct{}

// Note records the context values of a command. It must be called for each command that is sent,
// with the command's context and words.
func (s *Tenants) Note(ctx context.Context, words []string) {
	if len(words) < 4 || words[0] != "evalsha" && words[0] != "EVALSHA" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[words[3]] = ctx.Value(tenantKey{})
}

// ContextValues tests that a command carries the context values of its own caller, or none, even if
// other callers send at the same time.
func ContextValues(t *testing.T, own bool, connect func(*testing.T, *Tenants) backend.Backend) {
	tenants := &Tenants{seen: make(map[string]any)}
	s := open(t, connect(t, tenants))
	ask := func(tenant string) {
		ctx := context.WithValue(t.Context(), tenantKey{}, tenant)
		_, err := s.Acquire(ctx, backend.AcquireRequest{Name: tenant, Owner: Alice, Lease: Lease})
		if err != nil {
			t.Error(err)
		}
	}
	ask("alone")
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() { ask(fmt.Sprint("tenant", i)) })
	}
	all.Wait()
	if len(tenants.seen) != 201 {
		t.Errorf("%d locks were asked for", len(tenants.seen))
	}
	for tenant, value := range tenants.seen {
		if own && value != tenant || !own && value != nil {
			t.Errorf("%s: the context value of %v", tenant, value)
		}
	}
}
