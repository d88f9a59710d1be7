package redisbackend_test

import (
	"bytes"
	"context"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

// Whatever bytes a server answers with: a lock is acquired only by the reply that says so, another
// holds it only by one that says that, and nothing waits for more.
func FuzzServer(f *testing.F) {
	redis.SetLogger(silent{}) // no other test runs by now
	wiretest.AddReplies(f)
	f.Fuzz(func(t *testing.T, step byte, resp3 bool, first, second []byte) {
		if announcesMuch.Match(first) || announcesMuch.Match(second) {
			t.Skip("go-redis makes room for all that a reply announces")
		}
		server := &wiretest.FakeServer{RESP3: resp3, Answers: [][]byte{first, second}, Closes: true}
		client := redis.NewClient(&redis.Options{
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				return server.Dial(), nil
			},
			DialerRetries: 1, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{
				Mode: maintnotifications.ModeDisabled,
			},
		})
		defer server.Wait()
		defer client.Close()
		said, known := decisive(first, second)
		if step%6 == 1 && bytes.HasPrefix(first, []byte("-NOSCRIPT")) {
			known = false // a re-entry asks for the count as well: the second answer is to that
		}
		wiretest.Answered(t, redisbackend.New(client), step, said, known)
	})
}

// announcesMuch finds lengths of replies that take more memory than a test should.
var announcesMuch = regexp.MustCompile(`\d{4}`)

// decisive returns how the reply begins that decides what a script did: the first, or the second if
// the server did not know the script. It is known unless it is hidden behind what clients skip, or
// a map: go-redis takes one with a null key for null.
func decisive(first, second []byte) (said wiretest.Reply, known bool) {
	line, rest, ok := strings.Cut(string(first), "\n")
	line, ended := strings.CutSuffix(line, "\r")
	switch {
	case !ok || !ended || line == "":
		return "", true
	case strings.ContainsAny(line[:1], "|>!%"), strings.Contains(line, "NOSCRIPT") && rest != "":
		return "", false
	case strings.HasPrefix(line, "-NOSCRIPT") && second != nil:
		return decisive(second, nil)
	}
	return wiretest.Reply(line), true
}

// silent keeps go-redis from telling of every connection that is not what it should be.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Names and owners are any bytes, and none is taken for another.
func FuzzOwners(f *testing.F) {
	wiretest.FuzzOwners(f, func(addr string) backend.Backend {
		return redisbackend.New(connect(f, addr))
	})
}
