package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Ways to a store other than an open port: TLS, with and without a certificate of one's own, and a
// socket in the file system.
func TestWays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis.sock")
	cert, key, pair := certificate(t, dir)
	redis, etcd := testservers.Redis(t, "--unixsocket", socket), testservers.Etcd(t)
	plain := tlsProxy(t, redis.Addr, &tls.Config{Certificates: []tls.Certificate{pair}})
	h2 := tlsProxy(t, etcd.Addr, &tls.Config{
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAnyClientCert,
	})
	const nobody = "nobody holds a lock\n"
	trusted := "SSL_CERT_FILE=" + cert
	for _, c := range []struct {
		url    string
		env    string
		status int
		says   string
	}{
		{"unix://" + socket, "", 0, nobody},
		{"rediss://" + plain, trusted, 0, nobody},
		{"rediss://" + plain, "", exitUnavailable, "x509"},
		{"rediss://" + plain + "?skip_verify=true", "", 0, nobody},
		{"valkeys://" + plain, trusted, 0, nobody},
		{"valkeys://" + plain, "", exitUnavailable, "x509"},
		{"etcds://" + h2 + "?cacert=" + cert + "&cert=" + cert + "&key=" + key, "", 0, nobody},
		{"etcds://" + h2 + "?skip_verify=true&cert=" + cert + "&key=" + key, "", 0, nobody},
		{"etcds://" + h2 + "?cert=" + cert + "&key=" + key, "", exitUnavailable, "x509"},
		{"etcds://" + h2 + "?cacert=" + cert, "", exitUnavailable, "no answer"},
	} {
		t.Run(c.url, func(t *testing.T) {
			t.Parallel()
			timeout := "20s"
			if c.says == "no answer" {
				timeout = "1s" // etcd's client goes on until then
			}
			got := distsyncWith(t, []string{c.env}, "ls", "--store-timeout", timeout, "--store",
				c.url)
			if got.status != c.status || !strings.Contains(got.stderr, c.says) {
				t.Errorf("%+v, want status %d and %q", got, c.status, c.says)
			}
		})
	}
}

// certificate makes a certificate for 127.0.0.1 that vouches for itself, and its files.
func certificate(t *testing.T, dir string) (cert, key string, pair tls.Certificate) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
		0o600))
	pair, err = tls.LoadX509KeyPair(cert, key)
	must(err)
	return cert, key, pair
}

// tlsProxy accepts TLS and passes on what is inside.
func tlsProxy(t *testing.T, to string, config *tls.Config) (addr string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var passing sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		passing.Wait()
	})
	passing.Go(func() {
		for {
			outer, err := l.Accept()
			if err != nil {
				return
			}
			passing.Go(func() {
				defer outer.Close()
				inner, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer inner.Close()
				passing.Go(func() {
					_, _ = io.Copy(outer, inner)
					outer.Close()
				})
				_, _ = io.Copy(inner, outer)
			})
		}
	})
	return strings.Replace(l.Addr().String(), "[::]", "127.0.0.1", 1)
}

// A waiter that uses sharded channels hears of locks that are unlocked with --sharded.
func TestSharded(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t, 3)
	url := "redis+cluster://" + nodes[0].Addr
	checks, status := diagnose(t, "--store", url, "--sharded")
	want(t, checks, "messages", statusOK, "")
	if status != 0 {
		t.Errorf("status %d: %+v", status, checks)
	}
	stats := 0
	for _, n := range nodes {
		if strings.Contains(n.Do("INFO", "commandstats"), "cmdstat_spublish:") {
			stats++
		}
	}
	if stats == 0 {
		t.Error("nothing was published on a sharded channel")
	}
	if got := inside(t.Context(), "ls", "--sharded", "--store",
		"etcd://127.0.0.1:1"); got.status != exitUsage {
		t.Errorf("etcd: %+v", got)
	}
}
