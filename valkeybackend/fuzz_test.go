package valkeybackend_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// Whatever bytes a server answers with: a lock is acquired only by the reply that says so, another
// holds it only by one that says that, and nothing waits for more.
func FuzzServer(f *testing.F) {
	wiretest.AddReplies(f)
	f.Fuzz(func(t *testing.T, step byte, resp3 bool, first, second []byte) {
		// valkey-go takes the process down where a server breaks the rules of RESP, or answers what
		// it was not asked. So it is answered as often as it asks, and by the rules.
		answers := replies(first, 3)
		more := replies(second, 1)
		if len(answers) == 0 || step%6 != 1 && step%6 != 4 {
			answers = append(answers[:min(len(answers), 1)], more...)
		}
		server := &wiretest.FakeServer{RESP3: resp3, Answers: answers}
		client, err := valkey.NewClient(valkey.ClientOption{
			InitAddress: []string{"fake:1"}, ForceSingleClient: true,
			DialCtxFn: func(
				context.Context, string, *net.Dialer, *tls.Config,
			) (net.Conn, error) {
				return server.Dial(), nil
			},
			DisableCache: true, AlwaysRESP2: !resp3, ClientSetInfo: valkey.DisableClientSetInfo,
			ReadBufferEachConn: 1 << 10, WriteBufferEachConn: 1 << 10, RingScaleEachConn: 4,
			BlockingPoolSize: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Wait()
		defer client.Close()
		said, known := decisive(answers)
		wiretest.Answered(t, valkeybackend.New(client), step, said, known)
	})
}

// decisive returns how the reply begins that decides what a script did: the first, or the second if
// the server did not know the script. It is known unless it is hidden behind what clients skip.
func decisive(answers [][]byte) (said wiretest.Reply, known bool) {
	if len(answers) == 0 {
		return "", true
	}
	line, _, _ := strings.Cut(string(answers[0]), "\r\n")
	switch {
	case strings.ContainsAny(line[:1], "|!"):
		return "", false
	case strings.HasPrefix(line, "-NOSCRIPT"):
		said, known = decisive(answers[1:])
		return said, known && len(answers) < 3
	}
	return wiretest.Reply(line), true
}

// replies returns the replies, up to n, with which bytes begin.
func replies(b []byte, n int) (all [][]byte) {
	for range n {
		size, ok := replySize(b, 4)
		if !ok || b[0] == '>' {
			break
		}
		all = append(all, b[:size])
		b = b[size:]
	}
	return all
}

// simpleReply finds replies of one line.
var simpleReply = regexp.MustCompile(`^([+-].+|[:(][+-]?\d{1,18}|_|#[tf]|,[+-]?\d+(\.\d+)?)$`)

// replySize returns how long the reply is with which bytes begin, if there is one.
func replySize(b []byte, depth int) (size int, ok bool) {
	line, _, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok || len(line) == 0 || bytes.ContainsAny(line, "\r\n") || depth == 0 {
		return 0, false
	}
	size = len(line) + 2
	if simpleReply.Match(line) {
		return size, true
	}
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n < 0 || n > 100 {
		return size, string(line) == "$-1" || string(line) == "*-1"
	}
	switch line[0] {
	case '$', '=', '!':
		size += n + 2
		return size, size <= len(b) && string(b[size-2:size]) == "\r\n"
	case '%', '|':
		n *= 2
	case '*', '~':
	default:
		return 0, false
	}
	if line[0] == '|' {
		n++ // the value that has the attributes
	}
	for range n {
		inner, ok := replySize(b[size:], depth-1)
		if !ok {
			return 0, false
		}
		size += inner
	}
	return size, true
}

// Names and owners are any bytes, and none is taken for another.
func FuzzOwners(f *testing.F) {
	wiretest.FuzzOwners(f, func(addr string) backend.Backend {
		return valkeybackend.New(connectSimply(f, addr))
	})
}
