package redisson

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed951563bd/distsync/internal/test/depth"
)

// Random sequences of our steps and of Redisson's leave on each server what a model of the lock
// says, with the same answers and messages. Whatever comes, a holder can rely on its hold.
func TestRWModel(t *testing.T) {
	depth.Checks(t, 30, 100, 2000)
	everywhere(t, func(t *testing.T, s *store) {
		rapid.Check(t, func(rt *rapid.T) {
			s.do("flushall")
			m := rwModel{reads: map[string]int{}, timeouts: map[string]int{},
				notes: map[string]modelNote{}, promises: map[string]int{}}
			var trace strings.Builder
			for _, x := range drawRWSteps(rt) {
				fmt.Fprintf(&trace, "%+v\n", x)
				m.check(rt, s, x, &trace)
			}
			for _, owner := range append(ours, theirs...) { // an owner that leaves, leaves nothing
				for range m.writes {
					m.check(rt, s, step{do: map[bool]string{true: "unwrite",
						false: "junwrite"}[slices.Contains(ours, owner)], owner: owner, lease: 1},
						&trace)
				}
				for m.reads[owner] > 0 {
					m.check(rt, s, step{do: map[bool]string{true: "unread",
						false: "junread"}[slices.Contains(ours, owner)], owner: owner}, &trace)
				}
				if slices.Contains(ours, owner) {
					m.check(rt, s, step{do: "unwrite", owner: owner, lease: 1}, &trace)
				}
			}
			if m.left > 0 || m.notesLeft > 0 && len(m.notes) > 0 {
				rt.Fatalf("everybody has left, and there is %s, after\n%s", m.state(), &trace)
			}
		})
	})
}

var ours, theirs = []string{"A", "B", "C"}, []string{"J", "K"}

func drawRWSteps(rt *rapid.T) []step {
	one := rapid.Custom(func(rt *rapid.T) step {
		x := step{
			do: rapid.SampledFrom([]string{
				"read", "read", "read", "unread", "unread", "reread", "write", "write", "write",
				"unwrite", "unwrite", "rewrite",
				"jread", "jread", "junread", "junread", "jreread", "jwrite", "junwrite", "jrewrite",
				"noreads", "nowrites", "whoreads", "whowrites", "pass", "pass",
			}).Draw(rt, "do"),
			lease:  rapid.SampledFrom([]int{5, 10, 30}).Draw(rt, "lease"),
			waited: rapid.SampledFrom([]int{0, 1, 4}).Draw(rt, "waited"),
			place:  rapid.SampledFrom([]int{0, 3, 8}).Draw(rt, "place"),
		}
		x.owner = rapid.SampledFrom(ours).Draw(rt, "owner")
		if x.do[0] == 'j' {
			x.owner = rapid.SampledFrom(theirs).Draw(rt, "owner of Redisson's")
		}
		if x.do == "pass" {
			x.lease = rapid.SampledFrom([]int{1, 2, 4, 7, 12, 40}).Draw(rt, "passes")
		}
		return x
	})
	return slices.Concat(rapid.SliceOfN(rapid.SliceOfN(one, 1, 10), 1, 10).Draw(rt, "steps")...)
}

// rwModel is a model of the lock n. Times are in units, and what is not there lasts for -2 of them.
type rwModel struct {
	now, steps int

	mode     string
	left     int
	reads    map[string]int // by owner
	writer   string
	writes   int
	timeouts map[string]int // by the end of the key

	notes     map[string]modelNote
	notesLeft int

	published []string

	// promises says for how long each holder, a reader or (with :write) a writer, has been told
	// that it holds the lock.
	promises map[string]int
}

type modelNote struct {
	since moment
	ends  int
}

// A moment is one by the server's clock: within a unit the steps come one after the other.
type moment struct{ now, step int }

func (m moment) before(o moment) bool { return m.now < o.now || m.now == o.now && m.step <= o.step }

// check takes a step on the server and in the model.
func (m *rwModel) check(rt *rapid.T, s *store, x step, trace *strings.Builder) {
	m.steps++
	m.published = nil
	want := m.take(x)
	if got := s.take(x); got != want {
		rt.Fatalf("%+v is answered %q, want %q, after\n%s", x, got, want, trace)
	}
	if got, want := s.published(), strings.Join(m.published, ", "); got != want {
		rt.Fatalf("%+v publishes %q, want %q, after\n%s", x, got, want, trace)
	}
	if got, want := s.state(), m.state(); got != want {
		rt.Fatalf("%+v leaves\n%s, want\n%s, after\n%s", x, got, want, trace)
	}
	if wrong := m.broken(); wrong != "" {
		rt.Fatalf("%s, after\n%s", wrong, trace)
	}
}

// broken says which promise is, or that two exclude each other.
func (m *rwModel) broken() string {
	for who, lasts := range m.promises {
		owner, writes := strings.CutSuffix(who, ":write")
		switch {
		case lasts > m.left:
			return fmt.Sprintf("%s was told %d, and the lock lasts for %d", who, lasts, m.left)
		case writes && (m.mode != "write" || m.writer != owner):
			return fmt.Sprintf("%s was told %d, and doesn't write", who, lasts)
		case !writes && (m.reads[owner] == 0 || m.mode == "write" && m.writer != owner):
			return fmt.Sprintf("%s was told %d, and doesn't read", who, lasts)
		}
		for other := range m.promises {
			if writes && strings.TrimSuffix(other, ":write") != owner {
				return fmt.Sprintf("%s and %s are both inside", who, other)
			}
		}
	}
	return ""
}

func (m *rwModel) state() string {
	var all []string
	if len(m.notes) > 0 {
		fields := make(map[string]string)
		for w := range m.notes {
			fields[w+":write"] = ""
		}
		all = append(all, fmt.Sprintf("%s%s %d", notes("n"),
			strings.TrimPrefix(fmt.Sprint(fields), "map"), m.notesLeft))
	}
	if m.mode != "" {
		fields := map[string]string{"mode": m.mode}
		for r, n := range m.reads {
			fields[r] = fmt.Sprint(n)
		}
		if m.writes > 0 {
			fields[m.writer+":write"] = fmt.Sprint(m.writes)
		}
		all = append(all, fmt.Sprintf("n%s %d", strings.TrimPrefix(fmt.Sprint(fields), "map"),
			m.left))
	}
	for _, key := range slices.Sorted(maps.Keys(m.timeouts)) {
		all = append(all, fmt.Sprintf("{n}:%s %d", key, m.timeouts[key]))
	}
	return strings.Join(all, ", ")
}

// take takes a step in the model and words the answer.
func (m *rwModel) take(x step) string {
	switch x.do {
	case "read":
		return m.read(x)
	case "write":
		return m.write(x)
	case "unread":
		return m.unread(x.owner)
	case "unwrite":
		return m.unwrite(x)
	case "reread", "rewrite":
		return m.renew(x)
	case "noreads":
		return m.force("read", "0")
	case "nowrites":
		return m.force("write", "1")
	case "whoreads":
		switch _, counted := m.reads[x.owner]; {
		case m.mode != "read" && m.longest() < 0:
			return "free"
		case m.alive(x.owner):
		case counted && len(m.reads) == 1: // nobody else reads
			return "free"
		default:
			return fmt.Sprintf("count 0 for %d", m.left)
		}
		return fmt.Sprintf("count %d for %d", m.reads[x.owner], m.left)
	case "whowrites":
		if m.mode != "write" {
			return "free"
		}
		return fmt.Sprintf("count %d for %d", m.writesOf(x.owner), m.left)
	case "pass":
		m.pass(x.lease)
		return "ok"
	default:
		return m.redisson(x)
	}
}

func (m *rwModel) read(x step) string {
	switch {
	case m.mode == "write" && m.writer != x.owner:
		return fmt.Sprint("wait ", m.left)
	case !m.alive(x.owner) && m.writer != x.owner:
		barred := 0
		for _, n := range m.notes {
			if n.since.before(moment{m.now - x.waited, m.steps}) {
				barred = max(barred, n.ends-m.now)
			}
		}
		if barred > 0 {
			return fmt.Sprint("wait ", barred)
		}
	}
	m.begin("read")
	if !m.alive(x.owner) {
		// of a read that ended when Redisson renewed for less
		delete(m.timeouts, timeoutOf(x.owner, 1))
	}
	m.reads[x.owner] = 1
	m.lasts(timeoutOf(x.owner, 1), x.lease)
	m.left = max(m.left, x.lease)
	m.promise(x.owner, x.lease)
	return "count 1"
}

func (m *rwModel) write(x step) string {
	if m.mode != "" && m.writer != x.owner {
		if x.place > 0 {
			m.leave(x)
		}
		return fmt.Sprint("wait ", m.left)
	}
	m.begin("write")
	m.writer = x.owner
	m.writes++
	m.left = max(m.left, x.lease)
	m.promise(x.owner+":write", x.lease)
	m.takeBack(x.owner)
	return fmt.Sprintf("count %d", m.writes)
}

func (m *rwModel) leave(x step) {
	since := moment{m.now - x.waited, m.steps}
	for w, n := range m.notes {
		if n.ends <= m.now {
			delete(m.notes, w)
		} else if w == x.owner && n.since.before(since) {
			since = n.since
		}
	}
	if len(m.notes) == 0 {
		m.notesLeft = -2
	}
	m.notes[x.owner] = modelNote{since, m.now + x.place}
	m.notesLeft = max(m.notesLeft, x.place)
}

// takeBack says whether there was a note.
func (m *rwModel) takeBack(owner string) bool {
	_, was := m.notes[owner]
	delete(m.notes, owner)
	if len(m.notes) == 0 {
		m.notesLeft = -2
	}
	return was
}

func (m *rwModel) unread(owner string) string {
	if m.reads[owner] == 0 {
		return "not held"
	}
	said := "freed"
	if !m.alive(owner) {
		said = "not held"
	}
	delete(m.reads, owner)
	delete(m.promises, owner)
	delete(m.timeouts, timeoutOf(owner, 1))
	if m.mode == "read" {
		m.left = m.longest()
		if m.left < 0 {
			m.end("0")
		}
	}
	return said
}

// alive says whether an owner reads: that its field is there, and its lease isn't over.
func (m *rwModel) alive(owner string) bool {
	return m.reads[owner] > 0 && m.timeouts[timeoutOf(owner, 1)] > 0
}

func (m *rwModel) unwrite(x step) string {
	switch {
	case m.writer != x.owner:
		if m.takeBack(x.owner) {
			m.publish("1")
		}
		return "not held"
	case m.writes > 1:
		m.writes--
		m.left = max(m.left, x.lease)
		m.promise(x.owner+":write", x.lease)
		return "holds left"
	}
	m.writer, m.writes = "", 0
	delete(m.promises, x.owner+":write")
	m.left = m.longest()
	if m.left < 0 {
		m.end("1")
	} else {
		m.mode = "read"
		m.publish("1")
	}
	return "freed"
}

func (m *rwModel) renew(x step) string {
	reads := x.do == "reread"
	if reads && !m.alive(x.owner) {
		// of a read that ended when Redisson renewed for less
		delete(m.timeouts, timeoutOf(x.owner, 1))
		return "lost"
	}
	if !reads && m.writesOf(x.owner) == 0 {
		return "lost"
	}
	m.left = max(m.left, x.lease)
	if reads {
		m.lasts(timeoutOf(x.owner, 1), x.lease)
		m.promise(x.owner, x.lease)
	} else {
		m.promise(x.owner+":write", x.lease)
	}
	return "held"
}

func (m *rwModel) force(mode, message string) string {
	if m.mode != mode {
		return "was free"
	}
	for r, n := range m.reads {
		for i := range n {
			delete(m.timeouts, timeoutOf(r, i+1))
		}
	}
	m.end(message)
	return "released"
}

func (m *rwModel) pass(n int) {
	m.now += n
	less := func(left *int) bool {
		*left -= n
		return *left <= 0
	}
	for who, lasts := range m.promises {
		if lasts -= n; lasts > 0 {
			m.promises[who] = lasts
		} else {
			delete(m.promises, who)
		}
	}
	for key, left := range m.timeouts {
		if less(&left) {
			delete(m.timeouts, key)
		} else {
			m.timeouts[key] = left
		}
	}
	if len(m.notes) > 0 && less(&m.notesLeft) {
		clear(m.notes)
		m.notesLeft = -2
	}
	if m.mode != "" && less(&m.left) {
		m.end("")
	}
}

// redisson is what Redisson's scripts do.
func (m *rwModel) redisson(x step) string {
	const null = "<nil>"
	mine := m.writer == x.owner
	switch x.do {
	case "jread":
		if m.mode == "write" && !mine {
			return fmt.Sprint("wait ", m.left)
		}
		m.begin("read")
		m.reads[x.owner]++
		m.timeouts[timeoutOf(x.owner, m.reads[x.owner])] = x.lease
		m.left = max(m.left, x.lease)
		m.promise(x.owner, x.lease)
		return null
	case "jwrite":
		if m.mode != "" && !mine {
			return fmt.Sprint("wait ", m.left)
		}
		m.left = max(m.left, 0) + x.lease
		m.begin("write")
		m.writer = x.owner
		m.writes++
		m.promise(x.owner+":write", x.lease)
		return null
	case "junread":
		return m.redissonUnread(x.owner)
	case "junwrite":
		switch {
		case m.mode == "":
			m.publish("1")
			return null
		case !mine:
			return null
		case m.writes > 1:
			m.writes--
			m.cut(x.lease, x.owner)
			return "0"
		}
		m.writer, m.writes = "", 0
		delete(m.promises, x.owner+":write")
		if m.mode = "read"; len(m.reads) == 0 {
			m.end("1")
		}
		return "1"
	case "jreread":
		if m.reads[x.owner] == 0 {
			return "0"
		}
		m.cut(x.lease, append(ours, theirs...)...)
		for i := range m.reads[x.owner] {
			if key := timeoutOf(x.owner, i+1); m.timeouts[key] > 0 {
				m.timeouts[key] = x.lease
			}
		}
		return "1"
	default: // jrewrite
		if !mine {
			return "0"
		}
		m.cut(x.lease, append(ours, theirs...)...)
		return "1"
	}
}

func (m *rwModel) redissonUnread(owner string) string {
	switch {
	case m.mode == "":
		m.publish("0")
		return "<nil>"
	case m.reads[owner] == 0:
		return "<nil>"
	}
	delete(m.timeouts, timeoutOf(owner, m.reads[owner]))
	delete(m.promises, owner) // to whatever it is left with it has no promise of ours
	m.reads[owner]--
	if m.reads[owner] == 0 {
		delete(m.reads, owner)
	}
	if len(m.reads)+m.writes > 0 {
		if longest := m.longest(); longest > 0 {
			m.cut(longest, theirs...)
			return "0"
		}
		if m.mode == "write" {
			return "0"
		}
	}
	m.end("0")
	return "1"
}

// cut sets how long the lock lasts, as Redisson does, for which some are to be excused: they were
// told more.
func (m *rwModel) cut(left int, excused ...string) {
	for who, lasts := range m.promises {
		if slices.Contains(excused, strings.TrimSuffix(who, ":write")) {
			m.promises[who] = min(lasts, left)
		}
	}
	m.left = left
}

func (m *rwModel) begin(mode string) {
	if m.mode == "" {
		m.mode = mode
	}
}

func (m *rwModel) end(message string) {
	m.mode, m.left, m.writer, m.writes = "", -2, "", 0
	clear(m.reads)
	clear(m.promises)
	if message != "" {
		m.publish(message)
	}
}

func (m *rwModel) publish(message string) {
	m.published = append(m.published, RWChannel("n")+" "+message)
}

func (m *rwModel) promise(who string, lease int) { m.promises[who] = max(m.promises[who], lease) }

func (m *rwModel) lasts(key string, lease int) { m.timeouts[key] = max(m.timeouts[key], lease) }

func (m *rwModel) writesOf(owner string) int {
	if m.writer == owner {
		return m.writes
	}
	return 0
}

func (m *rwModel) longest() int {
	longest := -2
	for r, n := range m.reads {
		for i := range n {
			if left := m.timeouts[timeoutOf(r, i+1)]; left > 0 {
				longest = max(longest, left)
			}
		}
	}
	return longest
}

func timeoutOf(owner string, i int) string { return fmt.Sprintf("%s:rwlock_timeout:%d", owner, i) }
