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

// identifies says whether it is a look of ours who has a lock, which goes with an attempt now and
// then.
func (c command) identifies() bool {
	if len(c.effects) == 0 || len(c.args) != 4 {
		return false
	}
	first := c.effects[0][0]
	return first == "hlen" && len(c.effects) <= 2 || first == "zrange" && len(c.effects) == 1
}

// renews says whether it is a script that lets its first key last longer, and does nothing else with it.
func (c command) renews() bool {
	return c.does("pexpire") && !c.does("hset") && !c.does("hincrby")
}

// happens says whether an effect is one that a script of ours only has if a millisecond has passed since the last time.
func (c command) happens(effect []string) bool {
	if len(effect) < 2 {
		return false
	}
	switch kind, _, _ := strings.Cut(effect[1], ":"); kind {
	case "distsync_rwlock_notes", "distsync_fair_places":
		return effect[0] == "pexpire"
	case "redisson_lock_timeout", "redisson_lock_queue":
		isLook := func(e []string) bool { return e[0] == "zscore" && strings.HasPrefix(e[1], "redisson_lock_timeout:") }
		again := c.mentions("distsync_fair_places:") && slices.ContainsFunc(c.effects, isLook)
		return again && (effect[0] == "pexpire" || effect[0] == "zadd")
	default:
		return false
	}
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
	found    map[string]*found // by the words: they are looked for again and again
}

// watch starts a monitor until the end of the test.
func watch(t *testing.T, servers []*testservers.Server) *monitor {
	t.Helper()
	m := &monitor{t: t, servers: servers, found: make(map[string]*found)}
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

// found are the commands that mention one of some words, among the first so many.
type found struct {
	among    int
	commands []*command
}

// about returns the commands so far that mention one of some words in an argument.
func (m *monitor) about(words ...string) (commands []command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.search(words, 0)
	for _, c := range m.commands[f.among:] {
		if slices.ContainsFunc(words, c.mentions) {
			f.commands = append(f.commands, c)
		}
	}
	f.among = len(m.commands)
	for _, c := range f.commands {
		commands = append(commands, command{c.args, slices.Clone(c.effects)})
	}
	return commands
}

// search returns what was found of some words so far. They aren't looked for among the first so many commands.
func (m *monitor) search(words []string, first int) *found {
	key := strings.Join(words, " ")
	f := m.found[key]
	if f == nil {
		f = &found{among: first}
		m.found[key] = f
	}
	return f
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
	m.mu.Lock()
	m.search([]string{mark}, len(m.commands))
	m.mu.Unlock()
	for _, server := range m.servers {
		server.Do("ECHO", mark)
	}
	testservers.Until(m.t, "the monitors show the mark", func() bool {
		return len(m.about(mark)) == len(m.servers)
	})
}
