package wiretest

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Moved tests that clients keep handing a lock to each other while its slot moves from node to node
// of a cluster. No lock is lost, so there are never two holders.
func Moved(t *testing.T, p Package, nodes []*testservers.Server, o Options) {
	h := Hand(t, "n", Lease, func() backend.Backend { return p.Cluster(t, nodes, o) })
	h.GoesOn()
	for range 5 {
		m := NewMove(t, nodes, "n")
		// Until m.Key is called, the key is on the old node. After that, it is on the new node.
		// Both nodes refuse to release the lock, since a release needs the key and the channel on
		// one node.
		begin := m.Refusals()
		testservers.Until(t, "somebody meets the slot between the nodes", func() bool {
			return m.Refusals() > begin
		})
		m.Key()
		begin = m.Refusals()
		testservers.Until(t, "somebody meets the key on its new node", func() bool {
			return m.Refusals() > begin
		})
		m.Finish()
		h.GoesOn()
	}
}

// Failover tests that clients keep handing a lock to each other during a requested failover, in
// which the master and the replica swap roles. Each acquisition waits until it has reached the only
// replica, so no lock is lost, and there are never two holders. The old master answers normally for
// a while, and then with READONLY. The new master doesn't know the scripts.
func Failover(t *testing.T, p Package, s *testservers.Sentinel) {
	h := handReplicated(t, p, s)
	s.Sentinels[0].Do("SENTINEL", "FAILOVER", s.Name)
	Becomes(t, s.Replicas[0], "master")
	Becomes(t, s.Master, "slave")
	h.GoesOn()
}

// MasterDies is like Failover, but the master dies. It comes back empty, as a replica of the new
// master.
func MasterDies(t *testing.T, p Package, s *testservers.Sentinel) {
	h := handReplicated(t, p, s)
	s.Master.Kill()
	Becomes(t, s.Replicas[0], "master")
	s.Master.Restart()
	h.GoesOn()
}

func handReplicated(t *testing.T, p Package, s *testservers.Sentinel) *Handing {
	h := Hand(t, "n", 2*time.Second, func() backend.Backend {
		return p.Sentinel(t, s, Options{Replicas: 1, Timeout: time.Second})
	})
	h.GoesOn()
	return h
}

// ClusterMasterDies tests that steps and subscriptions find the replica that took over, in a
// cluster whose masters have one replica each. In a cluster, the client isn't notified of a
// failover.
func ClusterMasterDies(
	t *testing.T, p Package, masters, replicas []*testservers.Server, o Options,
) {
	s, other := open(t, p.Cluster(t, masters, o)), open(t, p.Cluster(t, masters, o))
	l := Subscribe(t, s, "n")
	Free(t, other, "n")
	l.Wait()
	TakeOver(t, masters, replicas, "n")
	testservers.Until(t, "a release on the new master is heard", func() bool {
		if _, err := other.Acquire(t.Context(), Acquire(Alice)); err != nil {
			return false
		}
		res, err := other.Release(t.Context(), Release(Alice))
		for err == nil && res.Outcome == backend.Left { // an earlier round left its hold
			res, err = other.Release(t.Context(), Release(Alice))
		}
		return err == nil && l.Heard()
	})
}
