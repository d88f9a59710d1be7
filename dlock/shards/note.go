package shards

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A note describes a member to all other members. The member holds the set's read-write lock for
// reading, and attaches the text of its note to that hold with dlock.HolderNote.
type note struct {
	run     string // identifies the call of Run
	version int    // only the note with a member's highest version counts
	state   state
	seats   []int // in ascending order
	place   int   // its place among the members that wait for seats; 0 if it doesn't wait
	weight  int   // how many seats it wants
	list    list  // the shards that it knows
	most    int   // the maximum number of shards that it takes; 0 for no limit
	address string
}

// A state is the state of a member in the set.
type state byte

const (
	waits   state = 'w' // waits for its first seat
	young   state = 'y' // has seats, but took them while no other member was seated
	seated  state = 'm'
	leaving state = 'l'
)

// A list identifies the shards that a member knows.
type list struct {
	numbered int    // the n of Numbered(n); 0 if the shards have other names
	digest   string // a digest of the names and of the version of the algorithm
}

// encode returns the note in a form that dlock.HolderNote accepts.
func (n note) encode() string {
	v := url.Values{}
	v.Set("r", n.run)
	v.Set("v", strconv.Itoa(n.version))
	v.Set("s", string(n.state))
	if len(n.seats) > 0 {
		seats := make([]string, len(n.seats))
		for i, seat := range n.seats {
			seats[i] = strconv.Itoa(seat)
		}
		v.Set("q", strings.Join(seats, "."))
	}
	setInt(v, "p", n.place)
	v.Set("w", strconv.Itoa(n.weight))
	setInt(v, "n", n.list.numbered)
	v.Set("d", n.list.digest)
	setInt(v, "c", n.most)
	if n.address != "" {
		v.Set("a", n.address)
	}
	return v.Encode()
}

// setInt sets key to n, unless n is 0.
func setInt(v url.Values, key string, n int) {
	if n != 0 {
		v.Set(key, strconv.Itoa(n))
	}
}

// parse reverses encode. It returns false if the text isn't a note. It ignores unknown keys, which
// come from later versions.
func parse(text string) (note, bool) {
	v, err := url.ParseQuery(text)
	if err != nil || v.Get("r") == "" || len(v.Get("s")) != 1 {
		return note{}, false
	}
	ok := true
	number := func(s string) int {
		if s == "" {
			return 0
		}
		n, err := strconv.Atoi(s)
		ok = ok && err == nil && n >= 0
		return n
	}
	n := note{
		run: v.Get("r"), version: number(v.Get("v")), state: state(v.Get("s")[0]),
		place: number(v.Get("p")), weight: number(v.Get("w")),
		list: list{number(v.Get("n")), v.Get("d")},
		most: number(v.Get("c")), address: v.Get("a"),
	}
	if q := v.Get("q"); q != "" {
		for seat := range strings.SplitSeq(q, ".") {
			n.seats = append(n.seats, number(seat))
		}
	}
	return n, ok && !slices.ContainsFunc(n.seats, func(seat int) bool { return seat > mostSeat })
}

// mostSeat is the highest seat that parse accepts in a note. It limits the work that a wrong note
// can cause.
const mostSeat = 1 << 16

// A member describes one member of the set, as it was last seen.
type member struct {
	note
	client string
	left   time.Duration // the time until it counts as gone, unless it renews its hold
}

// lacks returns the number of seats that a member waits for.
func (m *member) lacks() int {
	if m.state == leaving || m.place == 0 {
		return 0
	}
	return max(0, m.weight-len(m.seats))
}

// A view is a snapshot of all members. They are sorted by run id.
type view struct {
	members []*member
	taken   map[int]*member // the member on each seat
	next    time.Duration   // time until the first hold expires, unless it is renewed; 0 if none
}

// newView creates a view from the holders' notes.
func newView(holders []dlock.Holder) *view {
	latest := map[string]*member{}
	v := &view{taken: map[int]*member{}}
	for _, h := range holders {
		n, ok := parse(h.Note)
		if !ok {
			continue // a reader that isn't a member
		}
		if h.Remaining > 0 && (v.next == 0 || h.Remaining < v.next) {
			v.next = h.Remaining
		}
		if before := latest[n.run]; before == nil || before.version < n.version {
			latest[n.run] = &member{n, h.Client, h.Remaining}
		}
	}
	for _, m := range latest {
		v.members = append(v.members, m)
	}
	slices.SortFunc(v.members, func(a, b *member) int { return cmp.Compare(a.run, b.run) })
	for _, m := range v.members {
		if m.state != leaving {
			v.seat(m)
		}
	}
	return v
}

// seat records which seats a member has. If a seated and a young member claim the same seat, the
// seated one gets it. Otherwise, the one with the smaller run id gets it. All members see the same
// notes, so they agree.
func (v *view) seat(m *member) {
	for _, seat := range m.seats {
		if has := v.taken[seat]; has == nil || has.state == young && m.state == seated {
			v.taken[seat] = m
		}
	}
}

// find returns the member with the given run id, or nil.
func (v *view) find(run string) *member {
	i, found := slices.BinarySearchFunc(v.members, run, func(m *member, run string) int {
		return cmp.Compare(m.run, run)
	})
	if !found {
		return nil
	}
	return v.members[i]
}

// seats returns the taken seats, in ascending order.
func (v *view) seats() []int {
	all := make([]int, 0, len(v.taken))
	for seat := range v.taken {
		all = append(all, seat)
	}
	slices.Sort(all)
	return all
}
