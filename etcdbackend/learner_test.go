package etcdbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// A member that is a learner so far refuses all that clients ask. Clients that were given all
// members as endpoints, as is recommended, don't notice, though requests and streams go to one
// member after the other.
func TestALearnerAmongTheEndpoints(t *testing.T) {
	t.Parallel()
	member := testservers.Etcd(t)
	all := addrs([]*testservers.Server{member, testservers.EtcdLearner(t, member)})
	ctx := t.Context()
	for range 8 {
		s := open(t, connectAll(t, all))
		for range 3 {
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
			for range 3 {
				if res := wiretest.Must[backend.RenewResult](t)(
					s.Renew(ctx, renew(alice))); !res.Held {
					t.Fatal("a hold isn't there any more")
				}
			}
			if l := subscribe(t, s, "n"); l != nil {
				l.Sub.Close()
			}
			wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
		}
		s.Close()
	}
}
