package faults_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/testservers"
)

// writerPrefix makes a child's order one to be a writer.
const writerPrefix = "writer "

// writer starts a process that locks, draws a token, checks that it has the lock and says so. It
// then writes to the file on the server when it is told to, without a further look; says what came
// of it; and at last what Do says.
func (l *lab) writer() *process {
	l.Helper()
	s := *l.store
	s.name = writerPrefix + s.name
	return (&lab{T: l.T, store: &s}).process(l.server.Addr)
}

func runWriter(order string) error {
	var storeName, addr, lock string
	var lease time.Duration
	if _, err := fmt.Sscan(order, &storeName, &addr, &lease, &lock); err != nil {
		return err
	}
	connect := connectRedis
	if storeName == "valkey" {
		connect = connectValkey
	}
	b, closeClient, err := connect(addr)
	if err != nil {
		return err
	}
	defer closeClient()
	c := dlock.New(b, dlock.WithLease(lease), dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	defer c.Close()
	say := func(what any) { fmt.Println("it", what) }
	say(c.Locker(lock).Do(context.Background(), func(ctx context.Context) error {
		f := file(addr)
		token, err := f.draw()
		if err != nil {
			return err
		}
		if ctx.Err() != nil { // after drawing: a token drawn late would be newer than the next one's
			return ctx.Err()
		}
		say("checked")
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if err != nil {
			return err
		}
		verb, _, _ := strings.Cut(line, " ")
		say(f.write(verb, token, "late"))
		return nil
	}))
	return nil
}

// A file is what a lock protects: a key of the server at this address.
type file string

// draw returns a token that is larger than all before.
func (f file) draw() (token string, err error) { return testservers.Do(string(f), "INCR", "token") }

// fenced writes unless a newer token has been seen.
const fenced = `
if tonumber(ARGV[1]) < tonumber(redis.call('get', KEYS[2]) or 0) then
	return 'stale'
end
redis.call('set', KEYS[2], ARGV[1])
redis.call('set', KEYS[1], ARGV[2])
return 'OK'`

func (f file) write(verb, token, text string) error {
	command := []string{"SET", "file", text}
	if verb == "write-fenced" {
		command = []string{"EVAL", fenced, "2", "file", "newest", token, text}
	}
	switch reply, err := testservers.Do(string(f), command...); {
	case err != nil:
		return err
	case reply != "OK":
		return errors.New(reply)
	default:
		return nil
	}
}
