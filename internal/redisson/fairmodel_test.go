package redisson

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed951563bd/distsync/internal/test/depth"
)

// Random sequences of our steps and of Redisson's leave on each server what a model of the line
// says, with the same answers and messages. Whatever comes, the next to get in is the first to have
// come of those that still wait.
func TestFairModel(t *testing.T) {
	depth.Checks(t, 30, 100, 2000)
	lines(t, func(t *testing.T, s lineStore) {
		rapid.Check(t, func(rt *rapid.T) {
			s.clear()
			m := fairModel{times: map[string]int{}, places: map[string]int{}}
			var trace strings.Builder
			for _, x := range drawLineSteps(rt) {
				fmt.Fprintf(&trace, "%+v\n", x)
				m.check(rt, s, x, &trace)
			}
			for _, owner := range theirsInLine { // an owner that leaves, leaves nothing
				for m.holder == owner {
					m.check(rt, s, lineStep{"junlock", owner, 1, 0}, &trace)
				}
				m.check(rt, s, lineStep{"jquit", owner, 0, 10}, &trace)
			}
			for range 2 { // the next to leave may give it to one that has left
				for _, owner := range oursInLine {
					m.check(rt, s, lineStep{"unlock", owner, 1, 0}, &trace)
					for m.holder == owner {
						m.check(rt, s, lineStep{"unlock", owner, 1, 0}, &trace)
					}
				}
			}
			if got := s.dump(); got != "map[]" {
				rt.Fatalf("everybody has left, and there is %s, after\n%s", got, &trace)
			}
		})
	})
}

var oursInLine, theirsInLine = []string{"A:1", "A:2", "B:1", "C"}, []string{"J", "K"}

func drawLineSteps(rt *rapid.T) []lineStep {
	one := rapid.Custom(func(rt *rapid.T) lineStep {
		x := lineStep{
			do: rapid.SampledFrom([]string{
				"lock", "lock", "lock", "lock", "relock", "keep", "keep", "unlock", "unlock",
				"unlock", "renew", "force",
				"jlock", "jlock", "jlock", "jtry", "jquit", "junlock", "junlock", "jforce", "pass",
				"pass",
			}).Draw(rt, "do"),
			lease: rapid.SampledFrom([]int{2, 5, 30}).Draw(rt, "lease"),
			place: rapid.SampledFrom([]int{0, 3, 8}).Draw(rt, "place"),
		}
		x.owner = rapid.SampledFrom(oursInLine).Draw(rt, "owner")
		switch {
		case x.do == "keep":
			x.place++
			x.owner = strings.Join(rapid.Permutation(oursInLine).Draw(rt,
				"owners")[:rapid.IntRange(1, len(oursInLine)).Draw(rt, "n")], ",")
		case x.do[0] == 'j':
			x.owner = rapid.SampledFrom(theirsInLine).Draw(rt, "owner of Redisson's")
			x.place = rapid.SampledFrom([]int{2, 10, 25}).Draw(rt, "waits")
		case x.do == "pass":
			x.lease = rapid.SampledFrom([]int{1, 1, 2, 4, 12, 40}).Draw(rt, "passes")
		}
		return x
	})
	return slices.Concat(rapid.SliceOfN(rapid.SliceOfN(one, 1, 8), 1, 5).Draw(rt, "steps")...)
}

// fairModel is a model of the lock n. Times are in units; those of the maps are the moments at
// which they are over.
type fairModel struct {
	now int

	holder string
	holds  int
	ends   int // of the hold

	line       []string
	times      map[string]int // for Redisson
	places     map[string]int // of ours
	placesLast int            // when all of these are forgotten
	lineLast   int            // when the line and the times are; 0: never

	// theirs is how many of Redisson's seem to be in line, during a step of ours: all of ours that
	// have a place should be.
	theirs int

	// lasts is for how long, at least, the line and the places are to last, during a step of ours:
	// longer than any time for Redisson in it.
	lasts int

	published []string
}

// check takes a step on the server and in the model.
func (m *fairModel) check(rt *rapid.T, s lineStore, x lineStep, trace *strings.Builder) {
	m.published = nil
	waited, held := slices.Clone(m.line), m.holder
	want := m.take(x)
	if len(m.line) == 0 {
		m.lineLast = 0
	}
	if got := s.take(x); got != want {
		rt.Fatalf("%+v is answered %q, want %q, after\n%s", x, got, want, trace)
	}
	if got, want := s.published(), strings.Join(m.published, ", "); got != want {
		rt.Fatalf("%+v publishes %q, want %q, after\n%s", x, got, want, trace)
	}
	if got, want := s.state(), m.state(); got != want {
		rt.Fatalf("%+v leaves\n%s, want\n%s, after\n%s", x, got, want, trace)
	}
	if wrong := m.unfair(x, waited, held); wrong != "" {
		rt.Fatalf("%+v: %s, after\n%s", x, wrong, trace)
	}
}

// unfair says what is wrong with a step before which some waited and one held the lock.
func (m *fairModel) unfair(x lineStep, waited []string, held string) string {
	ofOurs := x.do[0] != 'j' && x.do != "pass"
	if ofOurs && m.holder == "" && len(m.line) > 0 && slices.Contains(oursInLine, m.line[0]) {
		return "the lock is free, and one of ours is first: " + m.line[0]
	}
	if m.holder == "" || m.holder == held || x.do == "keep" {
		return ""
	}
	for _, owner := range waited { // in the order in which they came
		if owner == m.holder {
			return ""
		}
		if slices.Contains(m.line, owner) && owner != x.owner { // it may have come back
			return fmt.Sprintf("%s gets in before %s", m.holder, owner)
		}
	}
	return ""
}

func (m *fairModel) state() string {
	var all []string
	name := func(owner string) string {
		if slices.Contains(oursInLine, owner) {
			return inLine(owner)
		}
		return owner
	}
	if m.holder != "" {
		all = append(all, fmt.Sprintf("[%s:%d] %d", name(m.holder), m.holds, m.ends-m.now))
	}
	times, places := map[string]string{}, map[string]string{}
	for owner, ends := range m.times {
		times[name(owner)] = fmt.Sprint(max(ends-m.now, 0))
	}
	for owner, ends := range m.places {
		places[name(owner)] = fmt.Sprint(max(ends-m.now, 0))
	}
	for _, owner := range m.line {
		all = append(all, fmt.Sprintf("%s:%s+%s", owner, places[name(owner)], times[name(owner)]))
		delete(times, name(owner))
		delete(places, name(owner))
	}
	for _, left := range []map[string]string{times, places} {
		if len(left) > 0 {
			all = append(all, fmt.Sprint("besides ", left))
		}
	}
	return strings.Join(all, " ")
}

// take takes a step in the model and words the answer.
func (m *fairModel) take(x lineStep) string {
	if x.do == "pass" {
		m.pass(x.lease)
		return "ok"
	}
	if x.do[0] == 'j' {
		return m.redisson(x)
	}
	if x.do == "unlock" && m.holder == x.owner && m.holds == 1 && m.passesOn() {
		return "freed"
	}
	m.begin()
	said := m.ours(x)
	m.settle()
	if said != "" {
		return said
	}
	left := "for ever" // nobody's
	if m.holder != "" {
		left = fmt.Sprint(m.ends - m.now)
	}
	if x.do != "keep" {
		return "wait " + left
	}
	said = "holds " + m.holder + " " + left
	if slices.Contains(theirsInLine, m.holder) || m.theirs > 0 {
		said += ", with Redisson's"
	}
	return said
}

// ours is one of our steps before it settles. It returns no text if the answer is how the lock is
// held in the end.
func (m *fairModel) ours(x lineStep) string {
	switch x.do {
	case "lock", "relock":
		switch {
		case m.holder == x.owner && x.do == "relock":
			m.holds++
			m.ends = m.now + x.lease
		case m.holder == x.owner:
			m.ends = max(m.ends, m.now+x.lease)
		case m.holder == "" && (len(m.line) == 0 || m.line[0] == x.owner):
			m.gets(x.owner, x.lease)
		default:
			if x.place > 0 {
				m.stand(x)
			}
			return ""
		}
		return fmt.Sprintf("count %d", m.holds)
	case "keep":
		m.keepAll(strings.Split(x.owner, ","), x.place)
		return ""
	case "unlock":
		switch {
		case m.holder != x.owner:
			m.leave(x.owner)
			return "not held"
		case m.holds > 1:
			m.holds--
			m.ends = m.now + x.lease
			return "holds left"
		}
		m.holder = ""
		return "freed"
	case "renew":
		if m.holder != x.owner {
			return "lost"
		}
		m.ends = m.now + x.lease
		return "held"
	default: // force
		if m.holder == "" {
			return "was free"
		}
		m.holder = ""
		return "released"
	}
}

// passesOn passes a lock on, or frees it, where nothing else is to be looked at, and says whether
// it has.
func (m *fairModel) passesOn() bool {
	ours := func(i int) bool { return i >= len(m.line) || slices.Contains(oursInLine, m.line[i]) }
	switch {
	case len(m.line) == 0 && len(m.places) == 0:
		m.holder = ""
		return true
	case len(m.line) == 0 || !ours(0) || !ours(1) || m.places[m.line[0]] <= m.now:
		return false
	}
	m.theirs = 0 // none that matters
	m.gets(m.line[0], shortUnits)
	m.publish("gives " + m.holder)
	return true
}

// begin is what each of our steps begins with, but for such an unlock.
func (m *fairModel) begin() {
	m.theirs, m.lasts = 0, 0
	if len(m.line) == 0 {
		if len(m.places) > 0 {
			clear(m.places)
			clear(m.times)
		}
		return
	}
	if len(m.places) == 0 {
		m.placesLast = 0
		for _, owner := range m.line {
			if slices.Contains(oursInLine, owner) {
				m.places[owner] = m.now
				left := max(m.times[owner]-m.now, 0)
				if left > 0 {
					m.places[owner] += freshUnits
				}
				m.lasts = max(m.lasts, freshUnits, left)
			}
		}
		m.placesLast = m.now + m.lasts
	}
	m.theirs = len(m.line) - len(m.places)
	for owner, ends := range m.places {
		if ends <= m.now {
			m.leave(owner)
		}
	}
	before := len(m.line)
	m.purge(func(owner string) bool {
		ends, ok := m.times[owner]
		return slices.Contains(theirsInLine, owner) && (!ok || ends <= m.now)
	})
	m.theirs -= before - len(m.line)
}

// purge takes out the first in line for as long as that owner's time is over.
func (m *fairModel) purge(over func(string) bool) {
	for len(m.line) > 0 && over(m.line[0]) {
		delete(m.times, m.line[0])
		m.line = m.line[1:]
	}
}

func (m *fairModel) leave(owner string) {
	if _, ok := m.places[owner]; ok {
		m.strike(owner)
		m.drop(owner)
	}
}

// strike notes whether one of ours with a place is in line: else there is one more of Redisson's
// than it seemed.
func (m *fairModel) strike(owner string) {
	if !slices.Contains(m.line, owner) {
		m.theirs++
	}
}

func (m *fairModel) drop(owner string) {
	delete(m.places, owner)
	delete(m.times, owner)
	m.line = slices.DeleteFunc(slices.Clone(m.line), func(o string) bool { return o == owner })
}

// placed says whether an owner is in line.
func (m *fairModel) placed(owner string) bool {
	_, place := m.places[owner]
	_, time := m.times[owner]
	if place && !time {
		m.strike(owner)
	}
	return place && time
}

// listed is placed for one whose place is kept by its client. That it has no time doesn't say that
// it isn't in line.
func (m *fairModel) listed(owner string) bool {
	_, place := m.places[owner]
	_, time := m.times[owner]
	switch {
	case !place:
		return false
	case time && m.theirs >= 0 || slices.Contains(m.line, owner):
		return true
	default:
		m.theirs++
		return false
	}
}

func (m *fairModel) stand(x lineStep) {
	least := m.times[x.owner]
	if m.placed(x.owner) {
		m.keep(x.owner, x.place, least)
		return
	}
	if least = 0; m.theirs > 0 {
		tail := m.line[len(m.line)-1]
		least = m.times[tail]
		if slices.Contains(theirsInLine, tail) {
			least += waitUnits
		}
	}
	m.keep(x.owner, x.place, least)
	m.line = append(slices.Clone(m.line), x.owner)
}

func (m *fairModel) keep(owner string, place, least int) {
	before, ok := m.places[owner]
	if _, times := m.times[owner]; !ok || !times {
		before = 0
	}
	m.keepUntil(owner, max(before, m.now+place), least)
}

func (m *fairModel) keepUntil(owner string, ends, least int) {
	if len(m.places) == 0 {
		m.placesLast = 0
	}
	m.places[owner] = ends
	m.times[owner] = max(ends, least, m.now+waitUnits*(1+2*max(0, m.theirs)))
	m.lasts = max(m.lasts, m.times[owner]-m.now)
}

// kept is how long what was kept lasts.
func (m *fairModel) kept() {
	switch {
	case m.theirs > 0:
		m.lineLast = 0
	case m.lasts > 0 && len(m.line) > 0:
		m.lineLast = max(m.lineLast, m.now+m.lasts)
	}
	if m.lasts > 0 {
		m.placesLast = max(m.placesLast, m.now+m.lasts)
	}
}

func (m *fairModel) keepAll(owners []string, place int) {
	var lost []string
	for _, owner := range owners {
		if owner == m.holder {
			continue
		}
		least := m.times[owner]
		before, placed := m.places[owner], m.listed(owner)
		if !placed {
			least, before = 0, 0
			lost = append(lost, owner)
		}
		m.keepUntil(owner, max(before, m.now+place), least)
	}
	m.line = slices.Concat(lost, m.line)
}

// gets gives the lock to the first in line, or to anybody if there is no line.
func (m *fairModel) gets(owner string, lease int) {
	m.holder, m.holds, m.ends = owner, 1, m.now+lease
	m.drop(owner)
	if m.theirs > 0 && len(m.line) > 0 && slices.Contains(theirsInLine, m.line[0]) {
		for _, member := range m.line {
			if _, ok := m.times[member]; ok {
				m.times[member] -= waitUnits
			}
		}
	}
}

func (m *fairModel) takeOff(wait int) {
	for owner := range m.times {
		m.times[owner] -= wait
	}
}

// settle is what each of our steps ends with.
func (m *fairModel) settle() {
	m.kept()
	switch {
	case m.holder != "" || len(m.line) == 0:
	case slices.Contains(oursInLine, m.line[0]):
		m.gets(m.line[0], shortUnits)
		m.publish("gives " + m.holder)
	default:
		m.turn()
	}
}

func (m *fairModel) turn() {
	if len(m.line) > 0 {
		m.publish("turn of " + m.line[0] + " 0")
	}
}

func (m *fairModel) publish(message string) { m.published = append(m.published, message) }

func (m *fairModel) pass(n int) {
	m.now += n
	if m.holder != "" && m.ends <= m.now {
		m.holder = ""
	}
	if m.placesLast <= m.now {
		clear(m.places)
	}
	if m.lineLast > 0 && m.lineLast <= m.now {
		m.line, m.lineLast = nil, 0
		clear(m.times)
	}
}

// redisson is what Redisson's scripts do.
func (m *fairModel) redisson(x lineStep) string {
	const null = "<nil>"
	if x.do == "jquit" {
		if i := slices.Index(m.line, x.owner); i >= 0 {
			for _, owner := range m.line[i+1:] {
				if owner != x.owner {
					m.times[owner] -= x.place
				}
			}
		}
		m.drop(x.owner)
		return null
	}
	m.purge(func(owner string) bool {
		ends, ok := m.times[owner]
		return ok && ends <= m.now
	})
	switch x.do {
	case "jlock", "jtry":
		switch {
		case m.holder == "" && (len(m.line) == 0 || m.line[0] == x.owner):
			m.holder, m.holds, m.ends = x.owner, 1, m.now+x.lease
			m.drop(x.owner)
			m.takeOff(x.place)
			return null
		case m.holder == x.owner:
			m.holds++
			m.ends = m.now + x.lease
			return null
		case x.do == "jtry":
			return "no"
		}
		return m.redissonStands(x)
	case "junlock":
		switch {
		case m.holder == "":
			m.turn()
			return "freed"
		case m.holder != x.owner:
			return null
		case m.holds > 1:
			m.holds--
			m.ends = m.now + x.lease
			return "left"
		}
		m.holder = ""
		m.turn()
		return "freed"
	default: // jforce
		if m.holder == "" {
			return "free"
		}
		m.holder = ""
		m.turn()
		return "freed"
	}
}

func (m *fairModel) redissonStands(x lineStep) string {
	left := m.ends - m.now
	if m.holder == "" {
		left = -2
	}
	if _, ok := m.times[x.owner]; ok {
		return fmt.Sprint(max(0, left))
	}
	if n := len(m.line); n > 0 {
		if ends, ok := m.times[m.line[n-1]]; ok && m.line[n-1] != x.owner {
			left = ends - m.now
		}
	}
	m.times[x.owner] = m.now + left + x.place
	m.line = append(slices.Clone(m.line), x.owner)
	if left < 0 {
		return "for ever"
	}
	return fmt.Sprint(left)
}
