package redisson_test

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A command is what a server was told, as MONITOR shows it.
type command struct {
	args    []string
	effects [][]string // if it was a script, what that told the server
}

func (c command) is(name string) bool { return strings.EqualFold(c.args[0], name) }

func (c command) mentions(word string) bool {
	return slices.ContainsFunc(c.args, func(arg string) bool { return strings.Contains(arg, word) })
}

// refused says whether it is an attempt to get a lock that another had: it asks for how long that is,
// and has no owner more or less.
func (c command) refused() bool {
	return c.does("pttl") && !c.does("hincrby") && !c.does("hset") && !c.does("hdel")
}

// does says whether it is a script that does something with its first key.
func (c command) does(command string) bool {
	return slices.ContainsFunc(c.effects, func(effect []string) bool {
		return effect[0] == command && effect[1] == c.args[3]
	})
}

// A monitor records the commands that servers receive, in the order in which they were carried out
// by each.
type monitor struct {
	t       *testing.T
	servers []*testservers.Server

	mu       sync.Mutex
	commands []*command
}

// watch starts a monitor until the end of the test.
func watch(t *testing.T, servers []*testservers.Server) *monitor {
	t.Helper()
	m := &monitor{t: t, servers: servers}
	var reading sync.WaitGroup
	t.Cleanup(reading.Wait)
	for _, server := range servers {
		conn, err := net.Dial("tcp", server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		conn.SetReadDeadline(time.Now().Add(testservers.Patience))
		if line, err := r.ReadString('\n'); line != "+OK\r\n" {
			t.Fatalf("MONITOR: %q, %v", line, err)
		}
		conn.SetReadDeadline(time.Time{})
		reading.Go(func() { m.read(r) })
	}
	return m
}

var monitored = regexp.MustCompile(`^\+[0-9.]+ \[\d+ ([^]]+)\] (.*)\r\n$`)

// read records what one server reports.
func (m *monitor) read(r *bufio.Reader) {
	var last *command
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return // closed
		}
		match := monitored.FindStringSubmatch(line)
		if match == nil {
			m.t.Errorf("MONITOR: %q", line)
			return
		}
		args := unquote(match[2])
		m.mu.Lock()
		if match[1] == "lua" {
			last.effects = append(last.effects, args)
		} else {
			last = &command{args: args}
			m.commands = append(m.commands, last)
		}
		m.mu.Unlock()
	}
}

// unquote splits a command as MONITOR writes it.
func unquote(line string) (args []string) {
	for line != "" {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return append(args, line)
		}
		arg, _ := strconv.Unquote(quoted)
		args = append(args, arg)
		line = strings.TrimPrefix(line[len(quoted):], " ")
	}
	return args
}

// about returns the commands so far that mention a word in an argument.
func (m *monitor) about(word string) (commands []command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.commands {
		if c.mentions(word) {
			commands = append(commands, command{c.args, slices.Clone(c.effects)})
		}
	}
	return commands
}

// refused counts the attempts of an owner to get a lock that another had.
func (m *monitor) refused(name, owner string) (n int) {
	for _, c := range m.about(name) {
		if c.refused() && c.mentions(owner) {
			n++
		}
	}
	return n
}

// asked counts the attempts of an owner to get a fair lock: the scripts that are the first that named it.
func (m *monitor) asked(name, owner string) (n int) {
	first := ""
	for _, c := range m.about(name) {
		if len(c.effects) == 0 || !c.mentions(owner) {
			continue
		}
		script := c.args[1]
		if c.is("eval") {
			script = fmt.Sprintf("%x", sha1.Sum([]byte(script)))
		}
		if first == "" {
			first = script
		}
		if script == first {
			n++
		}
	}
	return n
}

// sync returns when the monitor has recorded all that the servers have carried out by now.
func (m *monitor) sync() {
	m.t.Helper()
	mark := rand.Text()
	for _, server := range m.servers {
		server.Do("ECHO", mark)
	}
	testservers.Until(m.t, "the monitors show the mark", func() bool {
		return len(m.about(mark)) == len(m.servers)
	})
}
