package docs_test

import (
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

const (
	password = "a-long-password"                         // of users on the page
	java     = "8743c9c0-0795-4907-87fd-6c719a6b4586:42" // a thread of a Java program's
)

func onRedis(t *testing.T) place {
	p := redisPlace(t, testservers.Redis(t).Addr, "redis-cli", func(
		t *testing.T, addr, user string,
	) backend.Backend {
		opts := &redis.Options{Addr: addr}
		if user != "" {
			opts.Username, opts.Password = user, password
		}
		client := redis.NewClient(opts)
		t.Cleanup(func() { client.Close() })
		return redisbackend.New(client)
	})
	p.cluster = sync.OnceValue(func() place {
		return redisPlace(t, testservers.RedisCluster(t, 1)[0].Addr, "redis-cli", func(
			t *testing.T, addr, user string,
		) backend.Backend {
			opts := &redis.ClusterOptions{Addrs: []string{addr}}
			if user != "" {
				opts.Username, opts.Password = user, password
			}
			client := redis.NewClusterClient(opts)
			t.Cleanup(func() { client.Close() })
			return redisbackend.New(client, redisbackend.WithShardedPubSub())
		})
	})
	return p
}

func onValkey(t *testing.T) place {
	open := func(
		opts ...valkeybackend.Option,
	) func(t *testing.T, addr, user string) backend.Backend {
		return func(t *testing.T, addr, user string) backend.Backend {
			to := valkey.ClientOption{InitAddress: []string{addr}}
			if user != "" {
				to.Username, to.Password = user, password
			}
			client := wiretest.Must[valkey.Client](t)(valkey.NewClient(to))
			t.Cleanup(client.Close)
			return valkeybackend.New(client, opts...)
		}
	}
	p := redisPlace(t, testservers.Valkey(t).Addr, "valkey-cli", open())
	p.cluster = sync.OnceValue(func() place {
		return redisPlace(t, testservers.ValkeyCluster(t, 1)[0].Addr, "valkey-cli",
			open(valkeybackend.WithShardedPubSub()))
	})
	return p
}

// redisPlace is a server with its command line, which is called redis-cli on the page.
func redisPlace(
	t *testing.T, addr, program string, open func(t *testing.T, addr, user string) backend.Backend,
) place {
	return place{
		addr: addr,
		env:  commandLine(t, addr, program),
		empty: func(t *testing.T) {
			client := admin(t, addr)
			client.FlushAll(t.Context())
			testservers.Until(t, "the server knows that nobody listens any more", func() bool {
				return client.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Val() == ""
			})
		},
		backend: func(t *testing.T, user string) backend.Backend { return open(t, addr, user) },
	}
}

// commandLine returns the environment in which redis-cli asks the server at addr, and answers as on
// a terminal where somebody reads it, which here is a file.
func commandLine(t *testing.T, addr, program string) []string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	call := "exec " + testservers.Program(t, program) + " -p " + port
	return []string{programs(t,
		map[string]string{"redis-cli": "[ -f /dev/stdout ] && " + call + ` --no-raw "$@"` + "\n" +
			call + ` "$@"`})}
}

func admin(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client
}

// listens says whether anybody listens on a channel.
func (p *place) listens(t *testing.T, channel string) func() bool {
	client := admin(t, p.addr)
	return func() bool { return client.PubSubNumSub(t.Context(), channel).Val()[channel] > 0 }
}

// stands says whether somebody stands in the line of a fair lock.
func (p *place) stands(t *testing.T, name string) func() bool {
	client := admin(t, p.addr)
	return func() bool {
		return client.LLen(t.Context(), "redisson_lock_queue:{"+name+"}").Val() > 0
	}
}

// redisScenes are those of the page.
var redisScenes = map[string]scene{
	"locks": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		p.hold(t, backend.Fenced, "lock:account:7", web+":18")
		p.hold(t, backend.Read, "lock:prices", web+":19")
		p.hold(t, backend.Fair, "lock:till:3", job+":4")
		p.permits(t, "slots:mailer", job+":5", 2)
		return nil
	},
	"a plain lock": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		return nil
	},
	"a fenced lock": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Fenced, "lock:account:7", web+":18")
		return nil
	},
	"readers": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Read, "lock:prices", web+":19")
		p.hold(t, backend.Read, "lock:prices", job+":6")
		p.queue(t, backend.Write, "lock:prices", cron+":3", lease)
		return nil
	},
	"a writer": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Write, "lock:prices", web+":20")
		return nil
	},
	"a line": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Fair, "lock:till:3", web+":21")
		p.queue(t, backend.Fair, "lock:till:3", job+":7", lease)
		// so that it is behind, though it came in the same millisecond
		p.queue(t, backend.Fair, "lock:till:3", cron+":4", lease+time.Second)
		return nil
	},
	"permits": func(t *testing.T, p *place) func() {
		p.permits(t, "slots:mailer", web+":22", 2)
		p.permits(t, "slots:mailer", job+":8", 1)
		return nil
	},
	"who waits": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		in := p.waits(t, plain("lock:orders:42"),
			p.listens(t, "redisson_lock__channel:{lock:orders:42}"))
		return func() { p.frees(t, backend.Exclusive, "lock:orders:42", web+":17"); in() }
	},
	"a lock that won't go": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		return p.hears(t, backend.Exclusive, "lock:orders:42")
	},
	"a lock without an end": func(t *testing.T, p *place) func() {
		client := admin(t, p.addr)
		client.HSet(t.Context(), "lock:orders:42", java, 1)
		return func() {
			if left := client.PTTL(t.Context(), "lock:orders:42").Val(); left <= 0 {
				t.Errorf("%v are left", left)
			}
		}
	},
	"a reader that won't go": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Read, "lock:prices", web+":19")
		p.hold(t, backend.Read, "lock:prices", job+":6")
		in := p.waits(t, write("lock:prices"), p.listens(t, "redisson_rwlock:{lock:prices}"))
		return func() { p.frees(t, backend.Read, "lock:prices", job+":6"); in() }
	},
	"keys are deleted": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		p.hold(t, backend.Write, "lock:prices", web+":19")
		p.hold(t, backend.Fair, "lock:till:3", web+":21")
		p.permits(t, "slots:mailer", web+":22", 10)
		return all(
			p.waits(t, fair("lock:till:3"), p.stands(t, "lock:till:3")),
			p.hears(t, backend.Exclusive, "lock:orders:42"),
			p.hears(t, backend.Read, "lock:prices"),
			p.hears(t, backend.Permits, "slots:mailer"),
		)
	},
	"in a cluster": func(t *testing.T, p *place) func() {
		*p = p.cluster()
		p.empty(t)
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		return p.hears(t, backend.Exclusive, "lock:orders:42")
	},
	"a holder of permits": func(t *testing.T, p *place) func() {
		p.permits(t, "slots:mailer", web+":22", 2)
		p.permits(t, "slots:mailer", job+":8", 8)
		return p.hears(t, backend.Permits, "slots:mailer")
	},
	"a line that stands still": func(t *testing.T, p *place) func() {
		client, ctx := admin(t, p.addr), t.Context()
		client.RPush(ctx, "redisson_lock_queue:{lock:till:3}", java)
		client.ZAdd(ctx, "redisson_lock_timeout:{lock:till:3}", redis.Z{
			Score: float64(time.Now().Add(lease).UnixMilli()), Member: java,
		})
		return p.waits(t, fair("lock:till:3"), func() bool {
			return client.LLen(ctx, "redisson_lock_queue:{lock:till:3}").Val() > 1
		})
	},
	"numbers": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Fenced, "lock:account:7", web+":18")
		p.frees(t, backend.Fenced, "lock:account:7", web+":18")
		return func() {
			if token := p.hold(t, backend.Fenced, "lock:account:7", job+":9").
				Token; token <= 1999999999999999 {
				t.Errorf("the next number is %d", token)
			}
		}
	},
	"settings": func(t *testing.T, p *place) func() {
		admin(t, p.addr).ConfigSet(t.Context(), "maxmemory", "1gb")
		return nil
	},
	"a clock": func(t *testing.T, p *place) func() { return nil },
	"a user": func(t *testing.T, p *place) func() {
		return func() { p.uses(t, "locks", plain("lock:orders:42")) }
	},
	"a user of fenced locks": func(t *testing.T, p *place) func() {
		return func() { p.uses(t, "locks", fenced("lock:account:7")) }
	},
	"a user of read-write locks": func(t *testing.T, p *place) func() {
		return func() { p.uses(t, "locks", read("lock:prices"), write("lock:prices")) }
	},
	"a user of fair locks": func(t *testing.T, p *place) func() {
		return func() { p.uses(t, "locks", fair("lock:till:3")) }
	},
	"a user of latches": func(t *testing.T, p *place) func() {
		return func() { p.uses(t, "locks", latch("latch:import:")) }
	},
	"a user who looks": func(t *testing.T, p *place) func() {
		held := map[string]bool{
			"lock:orders:42": true, "lock:prices": true, "lock:till:3": true, "slots:mailer": true,
		}
		p.hold(t, backend.Exclusive, "lock:orders:42", web+":17")
		p.hold(t, backend.Read, "lock:prices", web+":19")
		p.hold(t, backend.Fair, "lock:till:3", web+":21")
		p.permits(t, "slots:mailer", web+":22", 2)
		return func() {
			c := p.client(t, "looks", cron, slog.New(slog.DiscardHandler))
			for lock, err := range c.Locks(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
				delete(held, lock.Name)
				if info, err := c.Inspect(t.Context(), lock.Name); err != nil ||
					len(info.Holders) != 1 {
					t.Errorf("%s: %+v, %v", lock.Name, info, err)
				}
			}
			if len(held) > 0 {
				t.Errorf("not listed: %v", held)
			}
			if ok, err := c.Locker("lock:free").TryLock(t.Context()); ok || err == nil {
				t.Errorf("TryLock: %v, %v", ok, err)
			}
		}
	},
	"a user in a cluster": func(t *testing.T, p *place) func() {
		*p = p.cluster()
		p.empty(t)
		return func() { p.uses(t, "locks", plain("lock:orders:42")) }
	},
	"a user of permits": func(t *testing.T, p *place) func() {
		return func() { p.uses(t, "locks", permit("slots:mailer", 4)) }
	},
}
