package certmagiclock_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	certmagiclock "github.com/seed951563bd/distsync/adapters/certmagic"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/stores"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// An issuer is a CA in this process.
type issuer struct {
	hook   func() // before a certificate is issued
	issued atomic.Int32
}

func (i *issuer) IssuerKey() string { return "test" }

func (i *issuer) Issue(
	_ context.Context, csr *x509.CertificateRequest,
) (*certmagic.IssuedCertificate, error) {
	if i.hook != nil {
		i.hook()
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: csr.DNSNames, NotBefore: time.Now(),
		NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, key)
	if err != nil {
		return nil, err
	}
	i.issued.Add(1)
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// newConfig returns certmagic as a replica has it.
func newConfig(
	t interface{ Cleanup(func()) }, storage certmagic.Storage, ca certmagic.Issuer,
) *certmagic.Config {
	var cfg *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) {
			return cfg, nil
		},
		Logger: zap.NewNop(),
	})
	t.Cleanup(cache.Stop)
	cfg = certmagic.New(cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{ca}, Logger: zap.NewNop(),
	})
	return cfg
}

func TestACertificateIsObtainedOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, replica func() *certmagiclock.Storage) {
		ca := new(issuer)
		var all sync.WaitGroup
		for range 3 {
			cfg := newConfig(t, replica(), ca)
			for range 2 { // a handshake, and the maintenance
				all.Go(func() {
					if err := cfg.ObtainCertSync(t.Context(), "example.com"); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if n := ca.issued.Load(); n != 1 {
			t.Errorf("three replicas obtained a certificate %d times", n)
		}
	})
}

// A failing CA doesn't issue anything.
type failing struct {
	issuer
	asked atomic.Int32
}

func (f *failing) Issue(
	context.Context, *x509.CertificateRequest,
) (*certmagic.IssuedCertificate, error) {
	f.asked.Add(1)
	return nil, errors.New("come back later")
}

// certmagic tries again after a minute. If the lock is lost by then, and another has it, it doesn't
// ask the CA, and in the end sees what that has obtained.
func TestACertificateThatAnotherObtainsAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, files := membackend.New(), &certmagic.FileStorage{Path: t.TempDir()}
		client := stores.NewClient(t, store)
		none, ca := new(failing), &issuer{hook: func() { time.Sleep(5 * time.Minute) }}
		a := newConfig(t, certmagiclock.New(files, stores.NewClient(t, store)), none)
		b := newConfig(t, certmagiclock.New(files, client), ca)
		done := make(chan error, 2)
		go func() { done <- a.ObtainCertAsync(t.Context(), "example.com") }()
		time.Sleep(10 * time.Second)
		go func() { done <- b.ObtainCertAsync(t.Context(), "example.com") }()
		time.Sleep(10 * time.Second)
		if n := ca.issued.Load(); n != 0 {
			t.Fatal("it was obtained while another had the lock")
		}
		if _, err := client.Locker("certmagic:issue_cert_example.com").
			ForceUnlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if a, b := none.asked.Load(), ca.issued.Load(); a != 1 || b != 1 {
			t.Errorf("it was asked for %d times by who lost the lock, and issued %d times to who "+
				"got that", a, b)
		}
		for held, err := range client.Locks(t.Context(), "") {
			t.Errorf("in the end %q is locked: %v", held.Name, err)
		}
	})
}

// replica is a process that obtains certificates by order: "obtain NAME", or "hang NAME", whose CA
// never answers. It says "begun NAME", "issued NAME" and "has NAME".
func replica(what string) error {
	addr, folder, _ := strings.Cut(what, " ")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := dlock.New(redisbackend.New(rdb), dlock.WithLease(2*time.Second),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	storage := certmagiclock.New(&certmagic.FileStorage{Path: folder}, client)
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		verb, name, _ := strings.Cut(orders.Text(), " ")
		ca := &issuer{hook: func() {
			fmt.Println("begun", name)
			if verb == "hang" {
				select {}
			}
			fmt.Println("issued", name)
		}}
		cfg := newConfig(forEver{}, storage, ca)
		go func() {
			if err := cfg.ObtainCertSync(context.Background(), name); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			fmt.Println("has", name)
		}()
	}
	return nil
}

// forEver is what nothing is cleaned up in.
type forEver struct{}

func (forEver) Cleanup(func()) {}

func TestACertificateOfAProcessThatIsKilledIsObtainedElsewhereOnce(t *testing.T) {
	t.Parallel()
	server, folder := testservers.Redis(t), t.TempDir()
	all := make([]*fleet.Replica, 3)
	for i := range all {
		all[i] = fleet.Start(t, server.Addr+" "+folder)
	}
	dying, others := all[0], all[1:]
	dying.Order("hang example.com")
	dying.Await("begun example.com")
	for _, r := range others {
		r.Order("obtain example.com")
	}
	testservers.Until(t, "the others wait for the lock", func() bool {
		return strings.Count(server.Do("CLIENT", "LIST", "TYPE", "pubsub"), "id=") == 2
	})
	dying.Kill()
	for _, r := range others {
		r.Await("has example.com")
	}
	if n := fleet.Count("issued example.com", all...); n != 1 {
		t.Errorf("the certificate was issued %d times", n)
	}
}
