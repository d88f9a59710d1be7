package etcdbackend_test

import (
	"fmt"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func BenchmarkAcquireRelease(b *testing.B) {
	s := open(b, connect(b, testservers.Etcd(b).Addr))
	for b.Loop() {
		wiretest.Must[backend.AcquireResult](b)(s.Acquire(b.Context(), acquire(alice)))
		wiretest.Must[backend.ReleaseResult](b)(s.Release(b.Context(), release(alice)))
	}
}

// BenchmarkRenew renews a thousand locks: a member that isn't the leader forwards each message.
func BenchmarkRenew(b *testing.B) {
	members := testservers.EtcdCluster(b, 3)
	for _, m := range members {
		cli := connect(b, m.Addr)
		res := wiretest.Must[*clientv3.StatusResponse](b)(cli.Status(b.Context(), m.Addr))
		role := "follower"
		if res.Leader == res.Header.MemberId {
			role = "leader"
		}
		b.Run(role, func(b *testing.B) {
			s := open(b, cli)
			reqs := make([]backend.RenewRequest, 1000)
			var all sync.WaitGroup
			for i := range reqs {
				reqs[i] = backend.RenewRequest{
					Name: fmt.Sprint("lock", i), Owner: alice, Lease: lease,
				}
				all.Go(func() {
					req := backend.AcquireRequest{Name: reqs[i].Name, Owner: alice, Lease: lease}
					wiretest.Must[backend.AcquireResult](b)(s.Acquire(b.Context(), req))
				})
			}
			all.Wait()
			for b.Loop() {
				s.RenewBatch(b.Context(), reqs, func(_ int, res backend.RenewResult, err error) {
					if err != nil || !res.Held {
						b.Errorf("renew: %+v, %v", res, err)
					}
				})
			}
			for _, req := range reqs {
				s.ForceRelease(b.Context(), backend.ForceReleaseRequest{Name: req.Name})
			}
		})
	}
}
