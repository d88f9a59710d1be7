package docs_test

import (
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func onEtcd(t *testing.T) place {
	// As small as it goes, to be filled.
	return etcdPlace(t, testservers.Etcd(t, "--quota-backend-bytes", "20000000").Addr)
}

func etcdPlace(t *testing.T, addr string) place {
	return place{
		addr: addr,
		env: []string{"ETCDCTL_ENDPOINTS=http://" + addr, programs(t, map[string]string{
			"etcdctl": "exec " + testservers.EtcdTool(t, "etcdctl") + ` "$@"`,
			"etcdutl": "exec " + testservers.EtcdTool(t, "etcdutl") + ` "$@"`,
		})},
		empty: func(t *testing.T) {
			wiretest.Must[*clientv3.DeleteResponse](t)(etcd(t, addr, "").
				Delete(t.Context(), "", clientv3.WithPrefix()))
		},
		backend: func(t *testing.T, user string) backend.Backend {
			return etcdbackend.New(etcd(t, addr, user))
		},
	}
}

func etcd(t *testing.T, addr, user string) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()}
	if user != "" {
		cfg.Username, cfg.Password = user, password
	}
	client := wiretest.Must[*clientv3.Client](t)(clientv3.New(cfg))
	t.Cleanup(func() { client.Close() })
	return client
}

// beside says whether some key has a lock's key as its beginning. Each waiter has such a key, or
// leaves a note.
func (p *place) beside(t *testing.T, name, part string) func() bool {
	client := etcd(t, p.addr, "")
	return func() bool {
		res, err := client.Get(t.Context(), etcdbackend.DefaultPrefix+name+part,
			clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && res.Count > 0
	}
}

var etcdScenes = map[string]scene{
	"locks": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "orders:42", web+":17")
		p.hold(t, backend.Fenced, "account:7", web+":18")
		p.hold(t, backend.Read, "prices", web+":19")
		p.hold(t, backend.Read, "prices", job+":6")
		p.queue(t, backend.Write, "prices", cron+":3", lease)
		p.hold(t, backend.Fair, "till:3", web+":21")
		p.queue(t, backend.Fair, "till:3", job+":7", lease)
		p.permits(t, "mailer", web+":22", 2)
		return nil
	},
	"a plain lock": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "orders:42", web+":17")
		in := p.waits(t, plain("orders:42"), p.beside(t, "orders:42", "\x00"))
		return func() { p.frees(t, backend.Exclusive, "orders:42", web+":17"); in() }
	},
	"a lock that won't go": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "orders:42", web+":17")
		return p.hears(t, backend.Exclusive, "orders:42")
	},
	"keys are deleted": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "orders:42", web+":17")
		p.hold(t, backend.Read, "prices", web+":19")
		p.hold(t, backend.Fair, "till:3", web+":21")
		p.permits(t, "mailer", web+":22", 10)
		return all(
			p.waits(t, fair("till:3"), p.beside(t, "till:3", "\x01line/")),
			p.hears(t, backend.Exclusive, "orders:42"),
			p.hears(t, backend.Write, "prices"),
			p.hears(t, backend.Permits, "mailer"),
		)
	},
	"a full store": func(t *testing.T, p *place) func() {
		client := etcd(t, p.addr, "")
		fill := func() bool {
			_, err := client.Put(t.Context(), "another's", strings.Repeat("x", 1_000_000))
			return err != nil && strings.Contains(err.Error(), "database space exceeded")
		}
		testservers.Until(t, "it is full", fill)
		return func() { p.uses(t, "", plain("orders:42")) }
	},
	"permissions": func(t *testing.T, p *place) func() {
		// the default cost makes comparing passwords slow
		*p = etcdPlace(t, testservers.Etcd(t, "--bcrypt-cost", "4").Addr)
		return func() {
			p.uses(t, "locks", plain("orders:42"), fenced("account:7"), read("prices"),
				write("prices"), fair("till:3"), permit("mailer", 4))
		}
	},
	"a snapshot": func(t *testing.T, p *place) func() {
		p.dir = t.TempDir()
		return func() {
			largest := p.hold(t, backend.Fenced, "account:7", web+":18").Token
			restored := etcdPlace(t, testservers.Etcd(t, "--data-dir",
				filepath.Join(p.dir, "restored")).Addr)
			if token := restored.hold(t, backend.Fenced, "account:7", web+":19").
				Token; token <= largest {
				t.Errorf("token %d after %d", token, largest)
			}
		}
	},
}
