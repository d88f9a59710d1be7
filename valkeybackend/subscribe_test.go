package valkeybackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestSubscribe(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			anywhere(t, func(t *testing.T, addr string) {
				wiretest.Messages(t, addr, func(t testing.TB, addr string) backend.Backend {
					return valkeybackend.New(connectSimply(t, addr, func(o *valkey.ClientOption) {
						o.AlwaysRESP2 = protocol == 2
					}))
				})
			})
		})
	}
}

func TestOneConnection(t *testing.T) { wiretest.OneConnection(t, testservers.Valkey(t).Addr, on) }

func TestSubscriptionSurvives(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) { wiretest.Survives(t, addr, simply) })
	t.Run("killed by the server", func(t *testing.T) {
		onServers(t, func(t *testing.T, server *testservers.Server) {
			wiretest.SurvivesAKill(t, server, on)
		})
	})
	t.Run("server restarted", func(t *testing.T) {
		wiretest.SurvivesARestart(t, testservers.Valkey(t), on)
	})
	t.Run("server hung", func(t *testing.T) {
		server := testservers.Valkey(t)
		wiretest.SurvivesAHang(t, server, open(t, connect(t, server.Addr, impatient)))
	})
	t.Run("server silent", func(t *testing.T) {
		server := testservers.Valkey(t)
		s := open(t, connect(t, server.Addr, impatient))
		l := subscribe(t, s, "a")
		server.Stop() // nobody asks anything
		stopped := time.Now()
		testservers.Until(t, "the silence has lasted", func() bool {
			return time.Since(stopped) > time.Second
		})
		server.Cont()
		if !l.Wait() {
			t.Error("a new connection wakes one")
		}
		testservers.Until(t, "there is one connection", func() bool {
			list := admin(t, server.Addr).ClientList(t.Context()).Val()
			return len(wiretest.Subscribed.FindAllString(list, -1)) == 1
		})
	})
}

func TestSubscribeEnds(t *testing.T) { wiretest.SubscribeEnds(t, testservers.Valkey(t), on) }

func TestSubscribeRefused(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.SubscribeRefused(t, server, func(user string) session {
			return open(t, connect(t, server.Addr, as(user), func(o *valkey.ClientOption) {
				o.Dialer.KeepAlive = 20 * time.Millisecond // how often it pings
			}))
		})
	})
}

func TestSubscribeInQuickSuccession(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) {
		wiretest.QuickSuccession(t, open(t, connectSimply(t, addr)),
			open(t, connectSimply(t, addr)))
	})
}
