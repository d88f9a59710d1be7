package docs_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// countLines counts what go-redis logs.
type countLines struct{ n atomic.Int32 }

func (c *countLines) Printf(context.Context, string, ...any) { c.n.Add(1) }

// TestSilence silences the client libraries as the page says.
func TestSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	nobody := l.Addr().String()
	check(t, l.Close())
	ping := func() {
		rdb := redis.NewClient(&redis.Options{Addr: nobody})
		defer rdb.Close()
		if err := rdb.Ping(t.Context()).Err(); err == nil {
			t.Error("somebody answers")
		}
	}
	defer logging.Enable()

	lines := new(countLines)
	redis.SetLogger(lines)
	ping()
	if lines.n.Load() == 0 {
		t.Error("go-redis logs no failed dials any more: the page says that it does")
	}
	redis.SetLogger(lines)
	said := lines.n.Load()
	logging.Disable() // of github.com/redis/go-redis/v9/logging
	ping()
	if lines.n.Load() != said {
		t.Error("go-redis still logs")
	}

	rdb := redis.NewClient(&redis.Options{
		Addr:                     "redis:6379",
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	check(t, rdb.Close())

	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"etcd:2379"},
		Logger:    zap.NewNop(), // or zap.New of a core that writes where your log is
	})
	check(t, err)
	check(t, cli.Close())
}
