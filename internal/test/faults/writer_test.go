package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// writerPrefix in a child's order makes it call runWriter.
const writerPrefix = "writer "

// writer starts a process that acquires a fenced lock, checks that it holds it, and prints its
// token. When the process is told to write, it prints the token again, without a further check. At
// the end it prints the result of Do.
func (l *lab) writer() *process {
	l.Helper()
	s := *l.store
	s.name = writerPrefix + s.name
	return (&lab{T: l.T, store: &s, lock: l.lock, kinds: fenced}).process(l.server.Addr)
}

func runWriter(order string) error {
	var storeName, addr, lock string
	var lease time.Duration
	var kind backend.Kind
	if _, err := fmt.Sscan(order, &storeName, &addr, &lease, &lock, &kind); err != nil {
		return err
	}
	b, closeClient, err := storeNamed(storeName).connect(addr)
	if err != nil {
		return err
	}
	defer closeClient()
	c := dlock.New(b, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	defer c.Close()
	say := func(what any) { fmt.Println("it", what) }
	p := &party{client: c, name: lock, kind: kind}
	say(p.locker().Do(context.Background(), func(ctx context.Context) error {
		number, _ := dlock.Token(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		say(number)
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
		say(number)
		return nil
	}))
	return nil
}

// storeNamed returns the store with a name.
func storeNamed(name string) *store {
	for _, s := range stores {
		if s.name == name {
			return s
		}
	}
	panic("no store is called " + name)
}

// A file is the resource that a lock protects. It may check the writers' tokens.
type file struct {
	looks  bool
	newest uint64
	text   string
}

// write writes a text. It returns false if the file refuses the token.
func (f *file) write(number uint64, text string) bool {
	if f.looks && number < f.newest {
		return false
	}
	f.newest, f.text = number, text
	return true
}
