package wiretest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Monitor records the commands that a server receives.
type Monitor struct {
	t    testing.TB
	addr string
	r    *bufio.Reader
}

// A Command is a command that a server received, in MONITOR's format. Its name is in upper case,
// because some clients send upper case and others don't.
type Command struct {
	Text     string
	InScript bool
}

// Watch starts a Monitor.
func Watch(t testing.TB, addr string) *Monitor {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testservers.Patience))
	io.WriteString(conn, "MONITOR\r\n")
	m := &Monitor{t, addr, bufio.NewReader(conn)}
	if line := m.line(); line != "+OK" {
		t.Fatalf("MONITOR: %s", line)
	}
	return m
}

func (m *Monitor) line() string {
	line, err := m.r.ReadString('\n')
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

var (
	monitored = regexp.MustCompile(`^\+[0-9.]+ \[\d+ ([^]]+)\] ("[^"]*")(.*)$`)
	// commands that clients send on their own
	household = regexp.MustCompile(`^"(HELLO|CLIENT|PING|CLUSTER|COMMAND)"`)
)

// All returns the commands that the server received since the last call to All.
func (m *Monitor) All() (commands []Command) {
	m.t.Helper()
	const mark = `"ECHO" "mark"`
	if _, err := testservers.Do(m.addr, "ECHO", "mark"); err != nil {
		m.t.Fatal(err)
	}
	for {
		match := monitored.FindStringSubmatch(m.line())
		if match == nil {
			m.t.Fatal("MONITOR speaks differently")
		}
		c := Command{strings.ToUpper(match[2]) + match[3], match[1] == "lua"}
		if c.Text == mark {
			return commands
		}
		commands = append(commands, c)
	}
}

// Commands returns the same commands as All, except those that scripts ran and those that clients
// sent on their own.
func (m *Monitor) Commands() (commands []string) {
	m.t.Helper()
	for _, c := range m.All() {
		if !c.InScript && !household.MatchString(c.Text) {
			commands = append(commands, c.Text)
		}
	}
	return commands
}

// Quoted returns a command in MONITOR's format.
func Quoted(args ...any) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = quoted(fmt.Sprint(arg))
	}
	return strings.Join(words, " ")
}

// quoted returns a word in MONITOR's format, which escapes each byte separately.
func quoted(word string) string {
	var b strings.Builder
	for i := range len(word) {
		if c := word[i]; c < 0x80 {
			q := strconv.Quote(string(rune(c)))
			b.WriteString(q[1 : len(q)-1])
		} else {
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return `"` + b.String() + `"`
}
