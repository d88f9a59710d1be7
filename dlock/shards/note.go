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

// A note is what a member says of itself to all others: the note of its hold on the reading side of
// the read-write lock by the name of the set.
type note struct {
	run     string // which call of Run it is
	version int    // of what a member has said the highest counts
	state   state
	seats   []int // ascending
	place   int   // among those that wait for seats; 0 if it doesn't
	weight  int   // how many seats it wants
	list    list  // what it knows of
	most    int   // how many shards it takes at most; 0: any number
	address string
}

// A state is what a member is to the others.
type state byte

const (
	waits   state = 'w' // for a first seat
	young   state = 'y' // seated since a moment when nobody had been for long
	seated  state = 'm'
	leaving state = 'l'
)

// A list is what a member says of the shards that it knows.
type list struct {
	numbered int    // the number of shards of Numbered; 0 if they have other names
	digest   string // of the names, and of the version of the algorithm
}

// encode returns a text that dlock.HolderNote takes.
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

// setInt sets a number that isn't 0.
func setInt(v url.Values, key string, n int) {
	if n != 0 {
		v.Set(key, strconv.Itoa(n))
	}
}

// parse reads what encode wrote, and says whether a text is that. Keys that it doesn't know are
// those of a later version.
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

// mostSeat bounds the time that a note of somebody else's can cost.
const mostSeat = 1 << 16

// A member is what has been seen of one.
type member struct {
	note
	client string
	left   time.Duration // until it is gone, unless it renews
}

// lacks returns how many seats a member waits for.
func (m *member) lacks() int {
	if m.state == leaving || m.place == 0 {
		return 0
	}
	return max(0, m.weight-len(m.seats))
}

// A view is what one look has shown of all members, by their ids.
type view struct {
	members []*member
	taken   map[int]*member // who has each seat
	next    time.Duration   // until the first of them is gone, unless it renews; 0: never
}

// newView returns what holders of the lock say.
func newView(holders []dlock.Holder) *view {
	latest := map[string]*member{}
	v := &view{taken: map[int]*member{}}
	for _, h := range holders {
		n, ok := parse(h.Note)
		if !ok {
			continue // a reader that is none of ours
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

// seat gives a member its seats. If two claim one, that of the older state has it, then the one
// with the smaller id, which everybody sees.
func (v *view) seat(m *member) {
	for _, seat := range m.seats {
		if has := v.taken[seat]; has == nil || has.state == young && m.state == seated {
			v.taken[seat] = m
		}
	}
}

// find returns a member, or nil.
func (v *view) find(run string) *member {
	i, found := slices.BinarySearchFunc(v.members, run, func(m *member, run string) int {
		return cmp.Compare(m.run, run)
	})
	if !found {
		return nil
	}
	return v.members[i]
}

// seats returns those that are taken, in ascending order.
func (v *view) seats() []int {
	all := make([]int, 0, len(v.taken))
	for seat := range v.taken {
		all = append(all, seat)
	}
	slices.Sort(all)
	return all
}
