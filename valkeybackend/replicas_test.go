package valkeybackend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestWithReplicasPanics(t *testing.T) {
	for name, c := range map[string]struct {
		n    int
		d    time.Duration
		says string
	}{
		"good":              {1, time.Millisecond, ""},
		"zero":              {0, time.Second, "0 replicas"},
		"negative":          {-1, time.Second, "-1 replicas"},
		"no time":           {1, 0, "whole milliseconds"},
		"negative time":     {1, -time.Second, "whole milliseconds"},
		"no millisecond":    {1, time.Microsecond, "whole milliseconds"},
		"half milliseconds": {1, 1500 * time.Microsecond, "whole milliseconds"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if (c.says == "") != (text == "") || !strings.Contains(text, c.says) {
					t.Errorf("panic %q, want one that says %q", text, c.says)
				}
			}()
			valkeybackend.WithReplicas(c.n, c.d)
		})
	}
}

func TestWithReplicas(t *testing.T) {
	t.Parallel()
	t.Run("valkey", func(t *testing.T) {
		master, slaves := testservers.ValkeyReplicated(t, 2)
		wiretest.Replicas(t, this, master, slaves)
	})
	t.Run("redis", func(t *testing.T) {
		master, slaves := testservers.RedisReplicated(t, 2)
		wiretest.Replicas(t, this, master, slaves)
	})
}

func TestWithReplicasInCluster(t *testing.T) {
	t.Parallel()
	masters := testservers.ValkeyCluster(t, 3)
	wiretest.ReplicasInCluster(t, this, masters, testservers.ValkeyClusterReplicas(t, masters))
}
