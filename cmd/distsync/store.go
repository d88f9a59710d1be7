package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/redisson"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// A store is an open connection to a lock store. Exactly one of redis, valkey, etcd and postgres is
// set.
type store struct {
	backend.Backend
	address *address

	redis    redis.UniversalClient
	valkey   valkey.Client
	etcd     *clientv3.Client
	postgres *pgxpool.Pool
	schema   string // the PostgreSQL schema that contains the locks
}

// openStore connects to the store that the flags describe, and waits until that store answers.
// Errors carry an exit status.
func (g *global) openStore(ctx context.Context) (b backend.Backend, closeStore func(), err error) {
	s, err := g.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	return s.Backend, s.close, nil
}

// connect is like openStore, but also returns the client and the address.
func (g *global) connect(ctx context.Context) (*store, error) {
	a, err := parseStore(g.store)
	if err == nil && g.timeout <= 0 {
		err = fmt.Errorf("--store-timeout %v: no store answers so fast", g.timeout)
	}
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	s := &store{address: a}
	switch strings.TrimSuffix(strings.TrimSuffix(a.scheme, "+cluster"), "+sentinel") {
	case "redis", "rediss", "unix":
		err = s.openRedis(g)
	case "valkey", "valkeys":
		err = s.openValkey(ctx, g)
	case "etcd", "etcds":
		err = s.openEtcd(ctx, g)
	case "postgres", "postgresql":
		err = s.openPostgres(g)
	}
	if err != nil {
		return nil, err
	}
	if err := s.ping(ctx); err != nil {
		s.close()
		return nil, s.unavailable(ctx, g, err)
	}
	return s, nil
}

// unavailable returns the error for a store that didn't answer, or that rejected the user or
// password.
func (s *store) unavailable(ctx context.Context, g *global, err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ctx.Err() == context.DeadlineExceeded ||
		ok && timeout.Timeout() {
		err = fmt.Errorf("no answer within %v", g.timeout)
	}
	if keepsOut(err) {
		return exitf(exitUnavailable, "%s refuses this user or password: %w", s.address, err)
	}
	return exitf(exitUnavailable, "%s can't be reached: %w", s.address, err)
}

// keepsOut reports whether err means that the store rejected the user or password.
func keepsOut(err error) bool {
	text := err.Error()
	return strings.Contains(text, "WRONGPASS ") || strings.Contains(text, "NOAUTH ") ||
		strings.Contains(text, rpctypes.ErrorDesc(rpctypes.ErrAuthFailed)) ||
		strings.Contains(text, "(SQLSTATE 28") // PostgreSQL's class of authorization errors
}

// schemes lists the URL schemes of all stores.
var schemes = []string{"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel",
	"redis+cluster", "rediss+cluster",
	"valkey", "valkeys", "etcd", "etcds", "postgres", "postgresql"}

// parseStore parses a store's URL and checks its scheme and hosts.
func parseStore(raw string) (*address, error) {
	if raw == "" {
		return nil, errors.New("which store? Say --store URL or set DISTSYNC_STORE, as in " +
			"redis://localhost:6379 (distsync help stores)")
	}
	if strings.HasPrefix(raw, "memory:") {
		return nil, errors.New("another process can't see locks in memory: " +
			"--store must be the URL of a server")
	}
	a, err := parseAddress(raw)
	switch {
	case err != nil:
	case !slices.Contains(schemes, a.scheme):
		err = fmt.Errorf("unknown scheme %s://; known are %s://", a.scheme,
			strings.Join(schemes, "://, "))
	case len(a.hosts) == 0 && a.scheme != "unix":
		err = errors.New("it has no host")
	case len(a.hosts) > 1 && slices.Contains(schemes[:3], a.scheme):
		err = fmt.Errorf("it has several hosts: use redis+cluster:// or " +
			"redis+sentinel://…?master_name=NAME")
	}
	if err != nil {
		return nil, fmt.Errorf("the store's URL is wrong: %w (distsync help stores)", err)
	}
	return a, nil
}

// wrong returns the error for a URL that a client library rejected. It doesn't quote the URL, which
// may contain a password.
func wrong(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return exitf(exitUsage, "the store's URL is wrong: %w (distsync help stores)", err)
}

func (s *store) openRedis(g *global) error {
	a := s.address
	scheme, way, _ := strings.Cut(a.scheme, "+")
	switch {
	case a.sentinels():
		o, err := redis.ParseFailoverURL(a.url(scheme))
		if err == nil && o.MasterName == "" {
			err = errors.New("with Sentinel it needs ?master_name=NAME")
		}
		if err != nil {
			return wrong(err)
		}
		if o.RouteByLatency || o.RouteRandomly || o.ReplicaOnly {
			return wrong(errors.New("locks are on the master: leave out route_by_latency, " +
				"route_randomly and replica_only"))
		}
		o.DialTimeout, o.ReadTimeout = orDefault(o.DialTimeout, g), orDefault(o.ReadTimeout, g)
		s.redis = redis.NewFailoverClient(o)
	case way == "cluster":
		o, err := redis.ParseClusterURL(a.url(scheme))
		if err != nil {
			return wrong(err)
		}
		o.DialTimeout, o.ReadTimeout = orDefault(o.DialTimeout, g), orDefault(o.ReadTimeout, g)
		s.redis = redis.NewClusterClient(o)
	default:
		o, err := redis.ParseURL(a.url(scheme))
		if err != nil {
			return wrong(err)
		}
		o.DialTimeout, o.ReadTimeout = orDefault(o.DialTimeout, g), orDefault(o.ReadTimeout, g)
		s.redis = redis.NewClient(o)
	}
	opts := []redisbackend.Option{redisbackend.WithPrefix(g.prefix)}
	if g.sharded {
		opts = append(opts, redisbackend.WithShardedPubSub())
	}
	s.Backend = redisbackend.New(s.redis, opts...)
	return nil
}

// orDefault returns d, which is a timeout from the URL. If d is 0, it returns the value of
// --store-timeout.
func orDefault(d time.Duration, g *global) time.Duration { return cmp.Or(d, g.timeout) }

// valkeyOptions lists the URL options that valkey-go supports. Its parser ignores all others.
var valkeyOptions = []string{"db", "dial_timeout", "write_timeout", "addr", "skip_verify",
	"protocol", "client_cache", "max_retries",
	"client_name", "master_set"}

func (s *store) openValkey(ctx context.Context, g *global) error {
	if err := s.address.only(valkeyOptions); err != nil {
		return wrong(err)
	}
	o, err := valkey.ParseURL(s.address.url(s.address.scheme))
	if err != nil {
		return wrong(err)
	}
	o.Dialer.Timeout, o.ConnWriteTimeout = orDefault(o.Dialer.Timeout, g),
		orDefault(o.ConnWriteTimeout, g)
	client, err := dialValkey(ctx, s.address, o)
	if err != nil {
		return s.unavailable(ctx, g, err)
	}
	s.valkey = client
	opts := []valkeybackend.Option{valkeybackend.WithPrefix(g.prefix)}
	if g.sharded {
		opts = append(opts, valkeybackend.WithShardedPubSub())
	}
	s.Backend = valkeybackend.New(client, opts...)
	return nil
}

// dialValkey returns a connected client. If ctx ends before the client has connected, dialValkey
// returns an error, and closes the client once it has connected.
func dialValkey(ctx context.Context, a *address, o valkey.ClientOption) (valkey.Client, error) {
	if err := a.dial(ctx, nil); err != nil {
		return nil, err
	}
	type result struct {
		client valkey.Client
		err    error
	}
	made := make(chan result, 1)
	go func() {
		client, err := valkey.NewClient(o)
		made <- result{client, err}
	}()
	select {
	case r := <-made:
		return r.client, r.err
	case <-ctx.Done():
		go func() {
			if r := <-made; r.err == nil {
				r.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// etcdOptions lists the options of an etcd URL. The first three have the names of etcdctl flags.
var etcdOptions = []string{"cacert", "cert", "key", "server_name", "skip_verify"}

func (s *store) openEtcd(ctx context.Context, g *global) error {
	a := s.address
	if strings.Trim(a.path, "/") != "" {
		return wrong(errors.New("an etcd URL has no path: set the prefix with --prefix"))
	}
	if g.sharded {
		return exitf(exitUsage, "--sharded: etcd has no channels")
	}
	tlsConfig, err := a.etcdTLS()
	if err != nil {
		return wrong(err)
	}
	o := clientv3.Config{
		DialTimeout: g.timeout,
		// These make the client notice a dead member well within a lease.
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		TLS:                  tlsConfig,
		Logger:               zap.NewNop(), // the client also returns the errors that it logs
	}
	for _, h := range a.hosts {
		scheme := "http://"
		if tlsConfig != nil {
			scheme = "https://"
		}
		o.Endpoints = append(o.Endpoints, scheme+withPort(h, a.port()))
	}
	if a.user != nil {
		o.Username = a.user.Username()
		o.Password, _ = a.user.Password()
	}
	if err := a.dial(ctx, tlsConfig); err != nil {
		return s.unavailable(ctx, g, err)
	}
	client, err := clientv3.New(o)
	if err != nil {
		return s.unavailable(ctx, g, err)
	}
	s.etcd = client
	var opts []etcdbackend.Option
	if g.prefix != "" {
		opts = append(opts, etcdbackend.WithPrefix(g.prefix))
	}
	s.Backend = etcdbackend.New(client, opts...)
	return nil
}

// etcdTLS returns the TLS configuration, or nil if the URL doesn't use TLS.
func (a *address) etcdTLS() (*tls.Config, error) {
	if err := a.only(etcdOptions); err != nil {
		return nil, err
	}
	if a.scheme != "etcds" {
		if a.query != "" {
			return nil, errors.New("these options are for TLS: use etcds://")
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.option("server_name")}
	if text := a.option("skip_verify"); text != "" {
		skip, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("skip_verify=%q: want true or false", text)
		}
		c.InsecureSkipVerify = skip
	}
	if file := a.option("cacert"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacert: %s has no certificate", file)
		}
	}
	cert, key := a.option("cert"), a.option("key")
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// ping returns nil if the store answers, even if the user lacks the right to ping.
func (s *store) ping(ctx context.Context) error {
	var err error
	switch {
	case s.redis != nil:
		if err := s.address.dial(ctx, nil); err != nil {
			return err
		}
		err = s.redis.Ping(ctx).Err()
	case s.valkey != nil:
		err = s.valkey.Do(ctx, s.valkey.B().Ping().Build()).Error()
	case s.postgres != nil:
		err = s.postgres.Ping(ctx)
	default:
		if _, err = s.etcd.Get(ctx, "distsync"); errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil
		}
	}
	if err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
		err = nil // the user is authenticated, but isn't allowed to ping
	}
	return err
}

// keepsNumbers reports whether the store keeps a semaphore's limit after all permits are released.
func (s *store) keepsNumbers() bool { return s.redis != nil || s.valkey != nil }

// forgetNumber is a script that deletes a semaphore's limit, unless a client holds a permit.
const forgetNumber = `
if redis.call('exists', KEYS[2]) == 1 or not tonumber(redis.call('get', KEYS[1]) or '') then
    return 0
end
return redis.call('del', KEYS[1])`

// forget deletes a semaphore's limit, unless a client holds a permit. It reports whether it deleted
// the limit.
func (s *store) forget(ctx context.Context, key string) (bool, error) {
	keys := []string{key, redisson.PermitIDs(key)}
	if s.redis != nil {
		n, err := s.redis.Eval(ctx, forgetNumber, keys).Int()
		return n > 0, err
	}
	eval := s.valkey.B().Eval().Script(forgetNumber).Numkeys(2).Key(keys...).Build()
	n, err := s.valkey.Do(ctx, eval).AsInt64()
	return n > 0, err
}

// close closes the client.
func (s *store) close() {
	switch {
	case s.redis != nil:
		_ = s.redis.Close()
	case s.valkey != nil:
		s.valkey.Close()
	case s.postgres != nil:
		s.postgres.Close()
	default:
		_ = s.etcd.Close()
	}
}
