package redisbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestSubscribe(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			anywhere(t, func(t *testing.T, addr string) {
				wiretest.Messages(t, addr, func(t testing.TB, addr string) backend.Backend {
					return redisbackend.New(connect(t, addr, func(o *redis.Options) {
						o.Protocol = protocol
					}))
				})
			})
		})
	}
}

func TestOneConnection(t *testing.T) { wiretest.OneConnection(t, testservers.Redis(t).Addr, on) }

func TestSubscriptionSurvives(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) { wiretest.Survives(t, addr, on) })
	t.Run("killed by the server", func(t *testing.T) {
		wiretest.SurvivesAKill(t, testservers.Redis(t), on)
	})
	t.Run("server restarted", func(t *testing.T) {
		wiretest.SurvivesARestart(t, testservers.Redis(t), on)
	})
	t.Run("server hung", func(t *testing.T) {
		server := testservers.Redis(t)
		wiretest.SurvivesAHang(t, server, open(t, connect(t, server.Addr, func(o *redis.Options) {
			o.ReadTimeout = 100 * time.Millisecond
		}), redisbackend.CheckEvery(20*time.Millisecond)))
	})
}

func TestSubscribeEnds(t *testing.T) { wiretest.SubscribeEnds(t, testservers.Redis(t), on) }

func TestSubscribeRefused(t *testing.T) {
	server := testservers.Redis(t)
	wiretest.SubscribeRefused(t, server, func(user string) session {
		return open(t, connect(t, server.Addr, as(user)),
			redisbackend.CheckEvery(250*time.Millisecond))
	})
}

func TestSubscribeInQuickSuccession(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		wiretest.QuickSuccession(t, open(t, connect(t, addr)), open(t, connect(t, addr)))
	})
}
