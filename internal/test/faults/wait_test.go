package faults_test

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func newProxy(t *testing.T, server string, protocol faults.Protocol) *faults.Proxy {
	t.Helper()
	p, err := faults.NewProxy(server, protocol)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// come waits for a value that must come.
func come[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(3 * testservers.Patience):
		// many processes may have to act first, on a busy machine
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}
