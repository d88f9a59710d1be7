package wiretest

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Service is a real server behind a proxy. The proxy is as strict as managed services and
// compatible servers, and uses their error messages.
type Service struct {
	// Bars maps the commands that the proxy refuses to their answers. The commands are in capital
	// letters. If the answer to one is empty, the proxy closes the connection.
	Bars map[string]string

	// Declared makes scripts fail if they use keys that aren't in KEYS, unless their first line
	// allows it, as in Dragonfly.
	Declared bool

	// Constant makes scripts fail unless each of their calls names the command with a string
	// literal and takes its key from KEYS, as in clusters of Alibaba Cloud.
	Constant bool

	// Alone, if not nil, is the cluster node behind the proxy. Until Recover is called, the proxy
	// answers as if this node knew no other node.
	Alone *testservers.Server

	mu        sync.Mutex
	trouble   string            // the answer to every script, unless empty
	met       int               // number of scripts answered with the error that Trouble set
	shas      map[string]string // hashes of the rewritten scripts, by the hash of the original
	recovered bool
}

// Serve starts the proxy in front of a server, and returns its address. The proxy runs until the
// test ends.
func (s *Service) Serve(t testing.TB, server string) (addr string) {
	t.Helper()
	l := Must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	var running sync.WaitGroup
	var mu sync.Mutex
	open, closed := make(map[net.Conn]bool), false
	keep := func(conn net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		open[conn] = true
		return !closed
	}
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				upstream, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer upstream.Close()
				if keep(client) && keep(upstream) {
					s.serve(client, upstream)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		closed = true
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().String()
}

// Trouble makes the proxy answer every script with an error from now on. If answer is empty,
// scripts get their real answers again.
func (s *Service) Trouble(answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble, s.met = answer, 0
}

// Met returns how many scripts got the error set by Trouble.
func (s *Service) Met() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.met
}

// Recover makes the proxy return the node's real list of nodes again.
func (s *Service) Recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovered = true
}

func (s *Service) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Alone != nil && !s.recovered
}

// serve answers requests one by one, until the client subscribes.
func (s *Service) serve(client, upstream net.Conn) {
	requests, replies := bufio.NewReader(client), bufio.NewReader(upstream)
	for {
		words, err := readWords(requests)
		if err != nil {
			return
		}
		verb := strings.ToUpper(words[0])
		refusal, barred := s.refuse(verb, words)
		switch {
		case barred && refusal == "":
			return
		case barred:
			if _, err := fmt.Fprintf(client, "-%s\r\n", refusal); err != nil {
				return
			}
			continue
		}
		if verb == "CLUSTER" && s.alone() {
			if _, err := io.WriteString(client, s.ownSlots(client, words)); err != nil {
				return
			}
			continue
		}
		if _, err := io.WriteString(upstream, request(s.rewrite(verb, words))); err != nil {
			return
		}
		if strings.HasSuffix(verb, "SUBSCRIBE") {
			var both sync.WaitGroup
			both.Go(func() { io.Copy(client, replies); client.Close() })
			both.Go(func() { io.Copy(upstream, requests); upstream.Close() })
			both.Wait()
			return
		}
		if err := copyValue(client, replies); err != nil {
			return
		}
	}
}

// ownSlots returns the answer to a request about slots, as if the node knew no other node.
func (s *Service) ownSlots(client net.Conn, words []string) string {
	host, port, _ := net.SplitHostPort(client.LocalAddr().String())
	var slots, limits []string
	for line := range strings.Lines(s.Alone.Do("CLUSTER", "NODES")) {
		if !strings.Contains(line, "myself") {
			continue
		}
		for _, some := range strings.Fields(line)[8:] {
			first, last, ok := strings.Cut(some, "-")
			if !ok {
				last = first
			}
			limits = append(limits, ":"+first, ":"+last)
			me := array(bulk(host), ":"+port, bulk("me"))
			slots = append(slots, array(":"+first, ":"+last, me))
		}
	}
	switch {
	case len(words) > 1 && strings.EqualFold(words[1], "slots"):
		return array(slots...) + "\r\n"
	case len(words) > 1 && strings.EqualFold(words[1], "shards"):
		me := array(bulk("id"), bulk("me"), bulk("port"), ":"+port, bulk("ip"), bulk(host),
			bulk("endpoint"), bulk(host), bulk("role"), bulk("master"), bulk("health"),
			bulk("online"))
		shard := array(bulk("slots"), array(limits...), bulk("nodes"), array(me))
		return array(shard) + "\r\n"
	}
	return "-ERR unknown subcommand\r\n"
}

func bulk(word string) string { return fmt.Sprintf("$%d\r\n%s", len(word), word) }

func array(values ...string) string {
	return strings.Join(append([]string{fmt.Sprintf("*%d", len(values))}, values...), "\r\n")
}

// refuse returns the answer to a command that the proxy refuses. It returns false if the proxy
// doesn't refuse the command.
func (s *Service) refuse(verb string, words []string) (answer string, refused bool) {
	answer, refused = s.Bars[verb]
	if refused || verb != "EVAL" && verb != "EVALSHA" {
		return answer, refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != "" {
		s.met++
		return s.trouble, true
	}
	if s.Constant && verb == "EVAL" && !keysAreConstants(words[1]) {
		return "ERR bad lua script for redis cluster, all the keys that the script uses" +
			" should be passed using the KEYS array", true
	}
	return "", false
}

var (
	scriptCall = regexp.MustCompile(`redis\.p?call\(([^\n]*)`)
	goodCall   = regexp.MustCompile(`^'\w+'(\)|, KEYS\[)`)
)

// keysAreConstants reports whether each call of a script names the command with a string literal,
// and takes its key from KEYS.
func keysAreConstants(script string) bool {
	for _, call := range scriptCall.FindAllStringSubmatch(script, -1) {
		if !goodCall.MatchString(call[1]) {
			return false
		}
	}
	return true
}

// declaredOnly is prepended to a script. It makes each call check that its keys are declared.
// Channels aren't keys.
const declaredOnly = `local declared, real = {}, redis; ` +
	`for _, key in ipairs(KEYS) do declared[key] = true; end; ` +
	`local keyless = {time = true, publish = true, spublish = true, pubsub = true}; ` +
	`local function look(verb, ...) ` +
	`local keys, several = {...}, verb == 'del' or verb == 'exists'; ` +
	`if (keyless[string.lower(verb)]) then return; end; ` +
	`for i = 1, several and #keys or 1 do if (not declared[keys[i]]) then ` +
	`error('script tried accessing undeclared key'); end; end; end; ` +
	`local redis = {call = function(...) look(...); return real.call(...); end, ` +
	`pcall = function(...) look(...); return real.pcall(...); end}; `

// rewrite returns a request as the proxy sends it to the server.
func (s *Service) rewrite(verb string, words []string) []string {
	if !s.Declared || verb != "EVAL" && verb != "EVALSHA" {
		return words
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if verb == "EVALSHA" {
		if sha, ok := s.shas[words[1]]; ok {
			words[1] = sha
		}
		return words
	}
	if strings.HasPrefix(words[1], "--!df flags=allow-undeclared-keys\n") {
		return words
	}
	text := declaredOnly + words[1]
	if s.shas == nil {
		s.shas = make(map[string]string)
	}
	s.shas[shaOf(words[1])] = shaOf(text)
	words[1] = text
	return words
}

func shaOf(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

func request(words []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	return b.String()
}

// readWords reads a request.
func readWords(r *bufio.Reader) (words []string, err error) {
	n, err := readLength(r)
	for i := 0; i < n && err == nil; i++ {
		var size int
		if size, err = readLength(r); err != nil {
			break
		}
		word := make([]byte, size+2)
		_, err = io.ReadFull(r, word)
		words = append(words, string(bytes.TrimSuffix(word, []byte("\r\n"))))
	}
	if err == nil && n < 1 {
		err = io.ErrUnexpectedEOF
	}
	return words, err
}

// copyValue copies one RESP2 or RESP3 value.
func copyValue(w io.Writer, r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, line); err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=', '!':
		if err == nil && n >= 0 {
			_, err = io.CopyN(w, r, int64(n+2))
		}
		return err
	case '%':
		n *= 2
	case '*', '~', '>':
	default:
		return nil
	}
	for ; n > 0 && err == nil; n-- {
		err = copyValue(w, r)
	}
	return err
}
