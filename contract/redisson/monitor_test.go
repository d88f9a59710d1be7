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

// A command is a command that a server carried out, in MONITOR's form.
type command struct {
	args    []string
	effects [][]string // for a script: the commands that it ran
}

func (c command) is(name string) bool { return strings.EqualFold(c.args[0], name) }

func (c command) mentions(word string) bool {
	return slices.ContainsFunc(c.args, func(arg string) bool { return strings.Contains(arg, word) })
}

// refused says whether the command is an attempt to get a lock that another owner has. Such a
// script asks for the remaining time, and doesn't change the owners.
func (c command) refused() bool {
	return c.does("pttl") && !c.does("hincrby") && !c.does("hset") && !c.does("hdel")
}

// identifies says whether the command is from Go and only reads the lock's holder. Such a command
// accompanies some attempts.
func (c command) identifies() bool {
	if len(c.effects) == 0 || len(c.args) != 4 {
		return false
	}
	first := c.effects[0][0]
	return first == "hlen" && len(c.effects) <= 2 || first == "zrange" && len(c.effects) == 1
}

// renews says whether the command is a script that makes its first key last longer, and does
// nothing else with it.
func (c command) renews() bool {
	return c.does("pexpire") && !c.does("hset") && !c.does("hincrby")
}

// happens says whether a script of Go's has this effect only if a millisecond has passed since the
// last time.
func (c command) happens(effect []string) bool {
	if len(effect) < 2 {
		return false
	}
	switch kind, _, _ := strings.Cut(effect[1], ":"); kind {
	case "distsync_rwlock_notes", "distsync_fair_places":
		return effect[0] == "pexpire"
	case "redisson_lock_timeout", "redisson_lock_queue":
		isLook := func(e []string) bool {
			return e[0] == "zscore" && strings.HasPrefix(e[1], "redisson_lock_timeout:")
		}
		again := c.mentions("distsync_fair_places:") && slices.ContainsFunc(c.effects, isLook)
		return again && (effect[0] == "pexpire" || effect[0] == "zadd")
	default:
		return false
	}
}

// does says whether the command is a script that runs this command on its first key.
func (c command) does(command string) bool {
	return slices.ContainsFunc(c.effects, func(effect []string) bool {
		return effect[0] == command && effect[1] == c.args[3]
	})
}

// A monitor records the commands that servers receive, in the order in which each server carried
// them out.
type monitor struct {
	t       *testing.T
	servers []*testservers.Server

	mu       sync.Mutex
	commands []*command
	// by their words: a cache, since the same words are searched again and again
	found map[string]*found
}

// watch starts a monitor, which runs until the end of the test.
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

// read records the commands of one server.
func (m *monitor) read(r *bufio.Reader) {
	var last *command
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return // the connection is closed
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

// unquote splits a command in MONITOR's format.
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

// found are the commands that mention one of some words. Only the first among commands have been
// searched.
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

// search returns the cached commands for some words. A new entry leaves out the first commands.
func (m *monitor) search(words []string, first int) *found {
	key := strings.Join(words, " ")
	f := m.found[key]
	if f == nil {
		f = &found{among: first}
		m.found[key] = f
	}
	return f
}

// refused counts an owner's attempts to get a lock that another had.
func (m *monitor) refused(name, owner string) (n int) {
	for _, c := range m.about(name) {
		if c.refused() && c.mentions(owner) {
			n++
		}
	}
	return n
}

// asked counts an owner's attempts to get a fair lock. An attempt is the script that first named
// the owner.
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

// sync waits until the monitor has recorded all commands that the servers have carried out by now.
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
