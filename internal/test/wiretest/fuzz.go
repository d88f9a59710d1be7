package wiretest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// AddReplies adds possible replies of a server to the fuzz corpus. An entry consists of a step, a
// flag that says whether the server speaks RESP3, and two replies.
func AddReplies(f *testing.F) {
	for _, answer := range []string{
		"$-1\r\n", "*-1\r\n", "_\r\n", ":0\r\n", ":1\r\n", ":-1\r\n", ":-2\r\n",
		":9223372036854775807\r\n", "+OK\r\n", "$0\r\n\r\n",
		"$1\r\n1\r\n", "$3\r\n-1\r\n", "*0\r\n", "*1\r\n$-1\r\n", "*2\r\n_\r\n_\r\n",
		"%1\r\n+a\r\n_\r\n", "#t\r\n", ",1\r\n", "(1\r\n", "=5\r\ntxt:1\r\n",
		"-ERR x\r\n", "-NOSCRIPT x\r\n", "-MOVED 1 nowhere:1\r\n", "!5\r\nERR x\r\n",
		"|1\r\n+a\r\n+b\r\n:1\r\n", ">2\r\n+a\r\n+b\r\n_\r\n",
		"", "\r\n", "$-1", "$-1\n", "%-1\r\n", "*-01\r\n", "$-2\r\n", "$5\r\nab", "*2\r\n:1\r\n",
		"garbage\r\n", "\x00\xff\r\n", ":1\r\n:0\r\n$-1\r\n",
		"$-1\r\n$1\r\n3\r\n", "$-1\r\n$-1\r\n", "$-1\r\n:3\r\n", ":1\r\n$1\r\n1\r\n:5000\r\n",
		":1\r\n$-1\r\n:-1\r\n",
	} {
		for step := range byte(6) {
			f.Add(step, step%2 == 0, []byte(answer), []byte("$-1\r\n"))
		}
	}
}

// A Reply is the first line of the reply that decides a step's result, without its line ending. It
// is "" if there is no reply.
type Reply string

// null reports whether r is a null reply. Some clients treat any type with the length -1 as null.
func (r Reply) null() bool {
	if r == "" || strings.IndexByte("$*~=", r[0]) < 0 {
		return strings.HasPrefix(string(r), "_")
	}
	n, err := strconv.Atoi(string(r[1:]))
	return err == nil && n == -1
}

func (r Reply) number(from, to int64) bool {
	if !strings.HasPrefix(string(r), ":") {
		return false
	}
	n, err := strconv.ParseInt(string(r[1:]), 10, 64)
	return err == nil && from <= n && n <= to
}

// Answered tests that a step returns, and that its result agrees with the server's reply. The
// parameter step, modulo six, selects which step. If known is false, the result isn't checked,
// because it might depend on how the client reads meaningless bytes.
func Answered(t *testing.T, b backend.Backend, step byte, said Reply, known bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wrong string
	var err error
	if step %= 6; step == 5 {
		wrong, err = answeredTryLock(ctx, b, said)
	} else {
		wrong, err = answeredStep(ctx, b.Open(), step, said)
	}
	if known && wrong != "" {
		t.Errorf("%s: %v", wrong, err)
	}
	if ctx.Err() != nil {
		t.Error("the step did not end before its context")
	}
}

func answeredTryLock(ctx context.Context, b backend.Backend, said Reply) (wrong string, err error) {
	locks := dlock.New(b, dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer locks.Close()
	ok, err := locks.Locker("n").TryLock(ctx)
	switch {
	case ok != said.null():
		return "TryLock: acquired, or not, against what the server said", err
	case !ok && err == nil && !said.number(-1, math.MaxInt64):
		return "TryLock: held by another, against what the server said", nil
	}
	return "", err
}

func answeredStep(
	ctx context.Context, s backend.Session, step byte, said Reply,
) (wrong string, err error) {
	defer s.Close()
	switch step {
	case 0, 1:
		var res backend.AcquireResult
		res, err = s.Acquire(ctx, backend.AcquireRequest{
			Name: "n", Owner: Alice, Lease: Lease, Reentry: step == 1,
		})
		if step == 0 && err == nil && res.Acquired != said.null() ||
			res.Acquired && (err != nil || !said.null()) {
			return "Acquire: acquired, or not, against what the server said", err
		}
		if step == 0 && said.null() && !res.Acquired {
			return "Acquire: what was acquired counts as not", err
		}
	case 2:
		var res backend.ReleaseResult
		res, err = s.Release(ctx, Release(Alice))
		if err == nil && (res.Outcome == backend.Freed) != said.number(1, 1) {
			return "Release: freed, or not, against what the server said", err
		}
	case 3:
		var res backend.RenewResult
		res, err = s.Renew(ctx, Renew(Alice))
		if res.Held != said.number(1, 1) {
			return "Renew: held, or not, against what the server said", err
		}
	case 4:
		var res backend.LookResult
		res, err = s.Look(ctx, backend.LookRequest{Name: "n", Owner: Alice})
		if res.Held && !said.number(1, 1) {
			return "Look: held, against what the server said", err
		}
	}
	// After a negative reply the step sends another request. That request may fail because it can't
	// be sent, or because the key isn't a lock. Either way, the step changed nothing.
	no := step == 2 && said.null() || step == 3 && said.number(0, 0) ||
		errors.Is(err, backend.ErrConflict) &&
			(step < 2 && said.number(-1, math.MaxInt64) || step == 4 && said.number(1, 1))
	if err != nil && !no && backend.KindOf(err) != backend.Unknown && said != "" && said[0] != '-' {
		return "a reply that is no error counts as not carried out", err
	}
	return "", err
}

// A FakeServer answers each request with the next of its answers, which may be any bytes, and
// closes the connection when there are no more.
type FakeServer struct {
	RESP3   bool
	Answers [][]byte

	// Closes makes the server close the connection after each answer except NOSCRIPT, so that a
	// client doesn't wait for the rest of a short answer.
	Closes bool

	running sync.WaitGroup
	mu      sync.Mutex
}

// Dial returns a connection to the server.
func (s *FakeServer) Dial() net.Conn {
	ours, theirs := net.Pipe()
	s.running.Go(func() {
		defer ours.Close()
		for r := bufio.NewReader(ours); ; {
			verb, err := readCommand(r)
			if err != nil || !s.answer(ours, verb) {
				return
			}
		}
	})
	return theirs
}

// Wait waits until all connections are closed.
func (s *FakeServer) Wait() { s.running.Wait() }

// answer answers one command, and reports whether the connection stays open.
func (s *FakeServer) answer(conn net.Conn, verb string) bool {
	if strings.EqualFold(verb, "hello") {
		greeting := "-ERR unknown command 'HELLO'\r\n"
		if s.RESP3 {
			greeting = "%1\r\n$5\r\nproto\r\n:3\r\n"
		}
		_, err := io.WriteString(conn, greeting)
		return err == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.Answers) == 0 {
		return false
	}
	answer := s.Answers[0]
	s.Answers = s.Answers[1:]
	_, err := conn.Write(answer)
	return err == nil && (!s.Closes || strings.Contains(string(answer), "NOSCRIPT"))
}

// readCommand reads a request and returns its first word.
func readCommand(r *bufio.Reader) (verb string, err error) {
	words, err := readWords(r)
	if err != nil {
		return "", err
	}
	return words[0], nil
}

func readLength(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// FuzzOwners tests that names and owners can consist of any bytes, and that different ones aren't
// confused.
func FuzzOwners(f *testing.F, connect func(addr string) backend.Backend) {
	server := miniredis.RunT(f)
	s := open(f, connect(server.Addr()))
	for _, name := range []string{"n", "{a}b", "a{b", "\x00", "\r\n", "ü",
		"redisson_lock__channel:{n}"} {
		f.Add(name, Alice, Bob)
		f.Add(name, name, name+" ")
		f.Add(name, "*-1\r\n", "\xff")
	}
	f.Fuzz(func(t *testing.T, name, one, two string) {
		if name == "" || one == "" || two == "" {
			return // backends never get requests with empty names or owners
		}
		ctx := t.Context()
		must := func(what string, ok bool, err error) {
			t.Helper()
			if !ok || err != nil {
				t.Errorf("%s (lock %q, owners %q and %q): %v", what, name, one, two, err)
			}
		}
		got, err := s.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: one, Lease: Lease})
		must("one acquires", got.Acquired, err)
		got, err = s.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: two, Lease: Lease, Reentry: true,
		})
		must("two acquires only if it is one",
			got.Acquired == (one == two) && (got.Count == 2) == (one == two), err)
		held, err := s.Renew(ctx, backend.RenewRequest{Name: name, Owner: two, Lease: Lease})
		must("two renews only if it is one", held.Held == (one == two), err)
		look, err := s.Look(ctx, backend.LookRequest{Name: name, Owner: two})
		must("two sees its holds",
			look.Held && (look.Count == 2) == (one == two) && (look.Count == 0) == (one != two),
			err)
		if one != two {
			gone, err := s.Release(ctx, backend.ReleaseRequest{
				Name: name, Owner: two, Lease: Lease,
			})
			must("two has nothing to release", gone.Outcome == backend.NotHeld, err)
			gone, err = s.Release(ctx, backend.ReleaseRequest{Name: name, Owner: one, Lease: Lease})
			must("one releases", gone.Outcome == backend.Freed, err)
		} else {
			forced, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: name})
			must("force release", forced.Released, err)
		}
		if keys := server.Keys(); len(keys) > 0 {
			t.Errorf("%q stays behind", keys)
		}
	})
}
