package redisbackend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestWithReplicasPanics(t *testing.T) {
	brief := func(o *redis.Options) { o.ReadTimeout = time.Second }
	unlimited := func(o *redis.Options) { o.ReadTimeout = -1 }
	for name, c := range map[string]struct {
		client redis.UniversalClient
		n      int
		d      time.Duration
		says   string
	}{
		"good":           {connect(t, "127.0.0.1:1"), 1, 5*time.Second - time.Millisecond, ""},
		"no limit":       {connect(t, "127.0.0.1:1", unlimited), 1, time.Hour, ""},
		"zero":           {connect(t, "127.0.0.1:1"), 0, time.Second, "0 replicas"},
		"negative":       {connect(t, "127.0.0.1:1"), -1, time.Second, "-1 replicas"},
		"no time":        {connect(t, "127.0.0.1:1"), 1, 0, "whole milliseconds"},
		"negative time":  {connect(t, "127.0.0.1:1"), 1, -time.Second, "whole milliseconds"},
		"no millisecond": {connect(t, "127.0.0.1:1"), 1, time.Microsecond, "whole milliseconds"},
		"half milliseconds": {
			connect(t, "127.0.0.1:1"), 1, 1500 * time.Microsecond, "whole milliseconds",
		},
		"as long": {connect(t, "127.0.0.1:1"), 1, 5 * time.Second, "ReadTimeout of 5s"},
		"longer": {
			connect(t, "127.0.0.1:1", brief), 1, 2 * time.Second, "ReadTimeout of 1s",
		},
		"longer, cluster": {connectCluster(t, nil), 1, 5 * time.Second, "ReadTimeout of 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if (c.says == "") != (text == "") || !strings.Contains(text, c.says) {
					t.Errorf("panic %q, want one that says %q", text, c.says)
				}
			}()
			redisbackend.New(c.client, redisbackend.WithReplicas(c.n, c.d))
		})
	}
}

func TestWithReplicas(t *testing.T) {
	t.Parallel()
	master, slaves := testservers.RedisReplicated(t, 2)
	wiretest.Replicas(t, this, master, slaves)
}

func TestWithReplicasInCluster(t *testing.T) {
	t.Parallel()
	masters := testservers.RedisCluster(t, 3)
	wiretest.ReplicasInCluster(t, this, masters, testservers.RedisClusterReplicas(t, masters))
}
