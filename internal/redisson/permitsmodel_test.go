package redisson

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/depth"
)

// Random sequences of our steps and of Redisson's leave on each server what a model of the
// semaphore says, with the same answers and messages. Whatever comes, an owner can rely on permits
// that it has, and no more are out than the limit that the last to get some has said.
func TestPermitsModel(t *testing.T) {
	depth.Checks(t, 30, 100, 2000)
	semaphores(t, func(t *testing.T, s semaphore) {
		rapid.Check(t, func(rt *rapid.T) {
			s := s.fresh(t)
			m := permitsModel{
				nLeft: gone, idsLeft: gone, ids: map[string]int{}, promises: map[string]promise{},
			}
			var trace strings.Builder
			for _, x := range drawPermitSteps(rt) {
				x = m.feasible(x)
				fmt.Fprintf(&trace, "%+v\n", x)
				m.check(rt, s, x, &trace)
			}
			// Once all owners have left, or were forced to, no permit is out.
			for _, owner := range ours {
				m.check(rt, s, permitStep{do: "put", owner: owner, count: 1}, &trace)
			}
			m.check(rt, s, permitStep{do: "all"}, &trace)
			m.check(rt, s, permitStep{do: "get", owner: "A", count: 3, lease: 1, limit: 3}, &trace)
			m.check(rt, s, permitStep{do: "pass", count: 1}, &trace)
			if got := s.take(permitStep{do: "look", owner: "-", limit: 3}); got != "3 available" {
				rt.Fatalf("everybody has left, and there are %s, after\n%s", got, &trace)
			}
		})
	})
}

func drawPermitSteps(rt *rapid.T) []permitStep {
	one := rapid.Custom(func(rt *rapid.T) permitStep {
		x := permitStep{
			do: rapid.SampledFrom([]string{
				"get", "get", "get", "get", "get", "get", "put", "put", "put", "renew", "renew",
				"renew", "look", "look", "all",
				"jget", "jget", "jget", "jget", "jput", "jput", "jputs", "jrenew", "javailable",
				"jtryset", "jset", "jadd", "jexpire", "jdelete",
				"pass", "pass", "pass", "lose", "forget", "miscount",
			}).Draw(rt, "do"),
			owner: rapid.SampledFrom(ours).Draw(rt, "owner"),
			count: rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(rt, "count"),
			lease: rapid.SampledFrom([]int{5, 10, 30}).Draw(rt, "lease"),
			limit: rapid.SampledFrom([]int{0, 0, 2, 4, 4, 4, 6}).Draw(rt, "limit"),
		}
		if x.do[0] == 'j' {
			x.owner = rapid.SampledFrom([]string{"J", "K"}).Draw(rt, "owner of Redisson's")
			x.limit = rapid.SampledFrom([]int{0, 0, 0, 0, 7, -7}).Draw(rt, "its clock is ahead by")
		}
		switch x.do {
		case "jget":
			x.lease = rapid.SampledFrom([]int{0, 5, 30}).Draw(rt, "lease of Redisson's")
		case "jset", "jtryset":
			x.count = rapid.SampledFrom([]int{2, 4, 6}).Draw(rt, "there are")
		case "jadd":
			x.count = rapid.SampledFrom([]int{-1, 1, 2}).Draw(rt, "more")
		case "pass":
			x.count = rapid.SampledFrom([]int{1, 2, 4, 7, 12, 40}).Draw(rt, "passes")
		}
		return x
	})
	return slices.Concat(rapid.SliceOfN(rapid.SliceOfN(one, 1, 10), 1, 10).Draw(rt, "steps")...)
}

// permitsModel is a model of the semaphore n. Times are in units.
type permitsModel struct {
	now       int
	n         int            // available
	ids       map[string]int // when they end
	published []string

	nLeft, idsLeft int // for how long the keys last, forEver, or gone

	// promises says what the owners that have permits have been told.
	promises map[string]promise
}

type promise struct{ count, ends int }

// No times.
const (
	forEver = -1
	gone    = -2
	never   = 1 << 30
)

// feasible returns a step, or another where the model can't know what the step does. Redisson draws
// a new id for each permit. Milliseconds decide which of several ids that are over it takes out,
// unless they were written together. And an owner loses the last of its ids, as it would to
// Redisson.
func (m *permitsModel) feasible(x permitStep) permitStep {
	if x.do == "lose" {
		x.count = max(len(m.own(x.owner, 0))-1, 0)
	}
	if x.do != "jget" {
		return x
	}
	for id := range m.ids {
		if id[:1] == x.owner {
			x.do = "jputs"
			return x
		}
	}
	over := m.over(m.now + x.limit)
	if len(over) <= x.count || m.ids[over[x.count-1]] != m.ids[over[x.count]] {
		return x
	}
	for _, id := range over {
		if m.ids[id] == m.ids[over[x.count]] && (id[0] != over[x.count][0] || id[0] >= 'J') {
			x.do = "javailable"
		}
	}
	return x
}

// check takes a step on the server and in the model.
func (m *permitsModel) check(rt *rapid.T, s semaphore, x permitStep, trace *strings.Builder) {
	had := len(m.own(x.owner, x.count)) == x.count
	m.published = nil
	want, got := m.take(x), "ok"
	switch x.do {
	case "pass":
		s.pass(x.count)
	case "forget":
		s.do("del", "n")
	case "miscount":
		s.do("incrby", "n", "5")
	default:
		got = s.take(x)
	}
	if got != want {
		rt.Fatalf("%+v is answered %q, want %q, after\n%s", x, got, want, trace)
	}
	if got, want := strings.ReplaceAll(s.published(), PermitsChannel("n")+" ",
		""), strings.Join(m.published, ", "); got != want {
		rt.Fatalf("%+v publishes %q, want %q, after\n%s", x, got, want, trace)
	}
	state := s.state()
	if want := m.state(); state != want {
		rt.Fatalf("%+v leaves\n%s, want\n%s, after\n%s", x, state, want, trace)
	}
	for owner, p := range m.promises {
		if got := strings.Count(state, owner); p.ends > m.now && got != p.count {
			rt.Fatalf("%s was told to have %d for %d, and has %d, after\n%s", owner, p.count,
				p.ends-m.now, got, trace)
		}
	}
	if out := strings.Count(state, ":"); strings.HasPrefix(got, "count") && !had && x.limit > 0 &&
		out > x.limit {
		rt.Fatalf("%d are out of %d, after\n%s", out, x.limit, trace)
	}
}

func (m *permitsModel) state() string {
	var all, out []string
	if m.nLeft != gone {
		all = append(all, fmt.Sprint(m.n, " ", inUnits(m.nLeft)))
	}
	for id, ends := range m.ids {
		left := "never"
		if ends != never {
			left = fmt.Sprint(max(ends-m.now, 0))
		}
		out = append(out, id+":"+left)
	}
	if slices.Sort(out); len(out) > 0 {
		all = append(all, fmt.Sprint(out, " ", inUnits(m.idsLeft)))
	}
	return strings.Join(all, ", ")
}

// inUnits words a time as [units] does.
func inUnits(n int) string {
	if n < 0 || n >= never/2 {
		return "for ever"
	}
	return fmt.Sprint(n)
}

// take takes a step in the model and words the answer.
func (m *permitsModel) take(x permitStep) string {
	switch x.do {
	case "get":
		return m.get(x)
	case "put":
		return m.put(x)
	case "renew":
		return m.renew(x)
	case "all":
		return m.force()
	case "look":
		return m.look(x)
	case "pass":
		m.pass(x.count)
	case "lose":
		m.takeOut(x.owner, []string{fmt.Sprint(x.owner, x.count)})
		m.incr(1)
		return ""
	case "forget":
		m.nLeft = gone
	case "miscount":
		m.incr(5)
	default:
		return m.redisson(x)
	}
	return "ok"
}

func (m *permitsModel) get(x permitStep) string {
	told, known := m.told()
	mine, over := m.own(x.owner, x.count), m.over(m.now)
	has, total := len(mine) == x.count, x.limit
	if total == 0 {
		total = told
	}
	switch {
	case x.limit == 0 && !known:
		return backend.ErrNoLimit.Error()
	case x.count > total:
		return backend.ErrTooMany.Error()
	}
	wake := len(over) > 0
	if !has && len(mine) > 0 {
		m.takeOut(x.owner, mine)
		wake = true
	}
	granted := has || len(m.ids)-len(m.over(m.now))+x.count <= total
	if granted {
		if !has {
			mine = nil
			for i := range x.count {
				mine = append(mine, fmt.Sprint(x.owner, i))
			}
		}
		m.keep(x, mine)
		wake = wake || x.limit > 0 && (!known || x.limit > told)
		if x.limit > 0 {
			told, known = x.limit, true
		}
	}
	m.remove(m.over(m.now)...)
	m.settle(told, known, wake)
	if granted {
		return fmt.Sprint("count ", x.count)
	}
	first := never
	for _, ends := range m.ids {
		first = min(first, ends)
	}
	return "wait " + inUnits(first-m.now)
}

func (m *permitsModel) put(x permitStep) string {
	told, known := m.told()
	back := m.remove(m.over(m.now)...)
	mine := m.own(x.owner, x.count)
	back += m.takeOut(x.owner, mine)
	if back > 0 {
		m.settle(told, known, true)
	}
	if len(mine) == x.count {
		return backend.Freed.String()
	}
	return backend.NotHeld.String()
}

func (m *permitsModel) renew(x permitStep) string {
	told, known := m.told()
	back := m.remove(m.over(m.now)...)
	mine := m.own(x.owner, x.count)
	held := len(mine) == x.count
	if held {
		m.keep(x, mine)
	} else {
		back += m.takeOut(x.owner, mine)
	}
	if back > 0 {
		m.settle(told, known, true)
	}
	return map[bool]string{true: "held", false: "lost"}[held]
}

func (m *permitsModel) force() string {
	told, known := m.told()
	clear(m.promises)
	over, all := len(m.over(m.now)), len(m.ids)
	m.remove(slices.Collect(maps.Keys(m.ids))...)
	if all > 0 {
		m.settle(told, known, true)
	}
	return map[bool]string{true: "released", false: "was free"}[all > over]
}

func (m *permitsModel) look(x permitStep) string {
	total, known := m.told()
	if x.limit > 0 {
		total = x.limit
	} else if !known {
		return backend.ErrNoLimit.Error()
	}
	last, out := 0, len(m.ids)-len(m.over(m.now))
	for _, ends := range m.ids {
		last = max(last, ends)
	}
	available := fmt.Sprint(max(total-out, 0), " available")
	if out == 0 {
		return available
	}
	return fmt.Sprintf("%s, out %s, has %d", available, inUnits(last-m.now),
		len(m.own(x.owner, x.count)))
}

// own returns the ids of an owner that count: of the first so many, and of those that follow
// without a gap.
func (m *permitsModel) own(owner string, count int) (ids []string) {
	for i := 0; ; i++ {
		id := fmt.Sprint(owner, i)
		ends, there := m.ids[id]
		if i >= count && !there {
			return ids
		}
		if there && ends > m.now {
			ids = append(ids, id)
		}
	}
}

// over returns the ids that are over by then, in the order in which Redisson takes them out.
func (m *permitsModel) over(now int) (ids []string) {
	for id, ends := range m.ids {
		if ends <= now {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(m.ids[a], m.ids[b]), cmp.Compare(b, a))
	})
	return ids
}

// told returns how many there are, if anybody knows.
func (m *permitsModel) told() (int, bool) { return m.n + len(m.ids), m.nLeft != gone }

// keep lets ids of ours last.
func (m *permitsModel) keep(x permitStep, ids []string) {
	m.add(ids, m.now+x.lease)
	if m.nLeft == forEver {
		m.idsLeft = forEver
	}
	m.promises[x.owner] = promise{x.count, m.now + x.lease}
	if m.idsLeft != forEver { // it is no hold of ours that ends then
		m.promises[x.owner] = promise{x.count, min(m.now+x.lease, m.now+m.idsLeft)}
	}
}

// add puts ids down as both sides do.
func (m *permitsModel) add(ids []string, ends int) {
	for _, id := range ids {
		m.ids[id] = ends
	}
	if m.idsLeft == gone {
		m.idsLeft = forEver
	}
	if m.nLeft > 0 {
		m.idsLeft = m.nLeft
	}
}

// takeOut removes ids of an owner that gives them back or has lost one.
func (m *permitsModel) takeOut(owner string, ids []string) int {
	delete(m.promises, owner)
	return m.remove(ids...)
}

// remove takes ids out and returns how many there were.
func (m *permitsModel) remove(ids ...string) int {
	before := len(m.ids)
	for _, id := range ids {
		delete(m.ids, id)
	}
	if len(m.ids) == 0 {
		m.idsLeft = gone
	}
	return before - len(m.ids)
}

func (m *permitsModel) settle(total int, known, wake bool) {
	available := 0
	if known {
		available = total - len(m.ids)
		m.incr(0)
		m.n = available
	}
	if wake {
		m.publish(max(available, 0))
	}
}

// incr is INCRBY n.
func (m *permitsModel) incr(by int) {
	if m.nLeft == gone {
		m.n, m.nLeft = 0, forEver
	}
	m.n += by
}

func (m *permitsModel) publish(n int) { m.published = append(m.published, fmt.Sprint(n)) }

func (m *permitsModel) pass(n int) {
	m.now += n
	if m.nLeft > 0 {
		if m.nLeft -= n; m.nLeft <= 0 {
			m.nLeft = gone
		}
	}
	if m.idsLeft > 0 {
		if m.idsLeft -= n; m.idsLeft <= 0 {
			m.remove(slices.Collect(maps.Keys(m.ids))...)
		}
	}
}

// redisson takes a step of Redisson's. Its clock may be ahead.
func (m *permitsModel) redisson(x permitStep) string {
	now := m.now + x.limit
	ends := never
	if x.lease > 0 {
		ends = now + x.lease
	}
	var ids []string
	for i := range x.count {
		ids = append(ids, fmt.Sprint(x.owner, i))
	}
	switch x.do {
	case "jget":
		m.reclaim(now, x.count)
		if m.nLeft != gone && m.n >= x.count {
			m.incr(-x.count)
			m.add(ids, ends)
			return "OK"
		}
		first := never
		for _, ends := range m.ids {
			first = min(first, ends)
		}
		if first == never {
			return "<nil>"
		}
		return "wait " + inUnits(max(first-now, 0))
	case "jput":
		ends, there := m.ids[ids[0]]
		if !there {
			return "0"
		}
		m.remove(ids[0])
		m.incr(1)
		m.publish(m.n)
		return map[bool]string{true: "0", false: "1"}[ends <= now]
	case "jputs":
		for _, id := range ids {
			if ends, there := m.ids[id]; !there || ends <= now {
				return "0"
			}
		}
		m.reclaim(now, len(m.ids))
		m.incr(m.remove(ids...))
		m.publish(x.count)
		return fmt.Sprint(x.count)
	case "javailable":
		m.reclaim(now, len(m.ids))
		if m.nLeft == gone {
			return "0"
		}
		return fmt.Sprint(m.n)
	case "jrenew":
		m.reclaim(now, len(m.ids))
		if _, there := m.ids[ids[0]]; !there {
			return "0"
		}
		m.ids[ids[0]] = ends
		return "1"
	case "jtryset":
		if m.nLeft != gone {
			return "0"
		}
		m.incr(x.count)
		m.publish(x.count)
		return "1"
	case "jset":
		told, known := m.told()
		if !known {
			told = 0
			m.incr(0)
		}
		if m.n += x.count - told; x.count != told {
			m.publish(x.count)
		}
		return "<nil>"
	case "jadd":
		m.incr(x.count)
		m.nLeft = forEver
		if x.count > 0 {
			m.publish(x.count)
		}
		return "<nil>"
	case "jexpire":
		if m.nLeft != gone {
			m.nLeft = x.lease
		}
		if m.idsLeft == gone {
			return "0"
		}
		m.idsLeft = x.lease
		m.cutPromises(m.now + x.lease)
		return "1"
	default: // jdelete
		deleted := 0
		if m.nLeft != gone {
			deleted++
		}
		if m.remove(slices.Collect(maps.Keys(m.ids))...) > 0 {
			deleted++
		}
		m.nLeft = gone
		m.cutPromises(m.now)
		return fmt.Sprint(deleted)
	}
}

// reclaim is what Redisson does with those that are over by its clock. If that is ahead nobody has
// been promised anything.
func (m *permitsModel) reclaim(now, limit int) {
	over := m.over(now)
	over = over[:min(len(over), limit)]
	for _, id := range over {
		if m.ids[id] > m.now {
			delete(m.promises, id[:1])
		}
	}
	if n := m.remove(over...); n > 0 {
		if m.incr(n); m.n > 0 {
			m.publish(m.n)
		}
	}
}

// cutPromises lets them end by then.
func (m *permitsModel) cutPromises(ends int) {
	for owner, p := range m.promises {
		m.promises[owner] = promise{p.count, min(p.ends, ends)}
	}
}
