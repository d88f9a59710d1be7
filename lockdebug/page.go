package lockdebug

import (
	_ "embed"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"text":      text,
	"short":     func(s seconds) string { return duration(time.Duration(s)) },
	"duration":  duration,
	"thousands": thousands,
	"number":    func(index int) int { return index + 1 },
	"stamp":     func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
	"iso":       func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"style":     func() template.CSS { return template.CSS(style) },
}).Parse(source))

// Limits on the number of rows that the page shows by default.
const (
	mostRows  = 200
	mostFirst = 10 // in the tables at the top
	mostInRow = 5  // holders or waiters of one listed lock
)

// A view holds the data of the page.
type view struct {
	*report
	query
	Lost     rows[loss]
	EndsSoon rows[hold]
	Long     rows[wait]
	Held     rows[hold]
	Waiting  rows[wait]
	RanOut   rows[loss] // expired fixed leases
	Sets     []setView
	Store    *storeView
}

func newView(rep *report, q query) *view {
	v := &view{report: rep, query: q}
	ranOut := func(l loss) bool { return l.Reason == dlock.LossLease.String() }
	lost := func(l loss) bool { return !ranOut(l) }
	endsSoon := func(h hold) bool { return h.EndsSoon }
	long := func(w wait) bool { return w.Long }
	v.Lost = pick(v, "lost", rep.Losses, mostFirst, lost, byLoss)
	v.EndsSoon = pick(v, "ending", rep.Holds, mostFirst, endsSoon, byHold)
	v.Long = pick(v, "long", rep.Waits, mostFirst, long, byWait)
	v.Held = pick(v, "held", rep.Holds, mostRows, every, byHold)
	v.Waiting = pick(v, "waiting", rep.Waits, mostRows, every, byWait)
	v.RanOut = pick(v, "ranout", rep.Losses, mostFirst, ranOut, byLoss)
	for _, s := range rep.Sets {
		v.Sets = append(v.Sets, newSetView(v, s))
	}
	if rep.Store != nil {
		locks := rep.Store.Locks
		sortBy(locks, q.sort, byLock)
		v.Store = &storeView{rep.Store, rows[lock]{view: v, id: "store", Shown: locks}}
	}
	return v
}

// A rows value contains the rows that the page shows in a table.
type rows[T row] struct {
	*view
	id      string // the section's id
	Shown   []T
	Matched int // rows that match the search
	Total   int
}

// More returns the number of matching rows that aren't shown.
func (r rows[T]) More() int { return r.Matched - len(r.Shown) }

// every selects all rows of a table.
func every[T any](T) bool { return true }

// pick returns the rows that the page shows in a table. The table has a row for each element of the
// slice that satisfies the predicate, but the page may omit some of them.
func pick[T row](
	v *view, id string, all []T, most int, which func(T) bool, columns columns[T],
) rows[T] {
	r := rows[T]{view: v, id: id}
	for _, row := range all {
		if !which(row) {
			continue
		}
		r.Total++
		if matches(row, v.query.find) {
			r.Shown = append(r.Shown, row)
		}
	}
	r.Matched = len(r.Shown)
	sortBy(r.Shown, v.sort, columns)
	if !v.all {
		r.Shown = r.Shown[:min(most, len(r.Shown))]
	}
	return r
}

// Title returns the page's title, which is short enough for a browser tab.
func (v *view) Title() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, thousands(n)+" "+what)
		}
	}
	add(v.Lost.Total, "lost")
	add(v.EndsSoon.Total, "ending soon")
	add(v.Long.Total, "waiting long")
	add(v.Held.Total, "held")
	return strings.Join(append(parts, "Locks"), " · ")
}

// Several reports whether there is more than one client.
func (v *view) Several() bool { return len(v.Clients) > 1 }

// Asked reports whether the form for asking a store preselects the client with the given index.
func (v *view) Asked(index int) bool { return max(v.store, 1) == index+1 }

func (v *view) Find() string     { return typed(v.query.find) }
func (v *view) Filtered() bool   { return v.query.find != "" }
func (v *view) Sort() string     { return v.sort }
func (v *view) Whole() bool      { return v.all }
func (v *view) Name() string     { return typed(v.name) }
func (v *view) Prefix() string   { return typed(v.prefix) }
func (v *view) Refresh() int     { return v.refresh }
func (v *view) LongWait() string { return duration(dlock.DefaultLease) }

// Groups returns the headings of the counters.
func (v *view) Groups() []group { return counters{}.Groups() }

// Again, Once, Often, All, Unfiltered and AsJSON return links to variants of this view.

func (v *view) Again() string { return v.url() }

func (v *view) Once() string {
	q := v.query
	q.refresh = 0
	return q.url()
}

func (v *view) Often() string {
	q := v.query
	q.refresh = 5
	return q.url()
}

func (v *view) All() string {
	q := v.query
	q.all = true
	return q.url()
}

// Unfiltered returns a link to this view without a search.
func (v *view) Unfiltered() string {
	q := v.query
	q.find = ""
	return q.url()
}

func (v *view) AsJSON() string {
	q := v.query
	q.json, q.all, q.refresh, q.sort = true, false, 0, ""
	return q.url()
}

// Ask returns a link to the store's report on the lock.
func (s subject) Ask() string { return askURL(s.client, s.Name) }

func askURL(client int, name string) string {
	return query{store: client, name: name}.url() + "#store"
}

// Ago returns the time since the loss.
func (l loss) Ago() time.Duration { return l.ago }

// Left returns the time until the call's wait ends.
func (w wait) Left() time.Duration { return w.left }

// A storeView shows a store's report.
type storeView struct {
	*store
	Rows rows[lock]
}

// Ask returns a link to the store's report on one of its locks.
func (s *storeView) Ask(name string) string { return askURL(s.number, name) }

// few returns how many of a lock's n holders or waiters the page shows.
func (s *storeView) few(n int) int {
	if s.Name == "" {
		return min(n, mostInRow)
	}
	return n
}

// Holders returns the first holders of a lock, as many as the page shows.
func (s *storeView) Holders(l lock) []holder { return l.Holders[:s.few(len(l.Holders))] }

// Others returns the number of holders that the page doesn't show.
func (s *storeView) Others(l lock) int { return len(l.Holders) - s.few(len(l.Holders)) + l.More }

// Line returns the first waiters in line, as many as the page shows.
func (s *storeView) Line(l lock) []string { return l.Line[:s.few(len(l.Line))] }

// Behind returns the number of waiters in line that the page doesn't show.
func (s *storeView) Behind(l lock) int { return len(l.Line) - s.few(len(l.Line)) }

// What returns a description of the lock: its kind and, for a semaphore, the number of acquired
// permits.
func (l lock) What() string {
	switch {
	case l.Shared():
		return "read-write"
	case l.Limit == 0 || l.More > 0:
		return l.Kind
	}
	out := 0
	for _, h := range l.Holders {
		out += h.Count
	}
	return fmt.Sprintf("%s · %s of %s out", l.Kind, thousands(out), thousands(l.Limit))
}

// Shared reports whether this is a read-write lock, whose holders can be readers or writers.
func (l lock) Shared() bool { return l.Kind == backend.Write.String() }

// A group is a group of related counters.
type group struct {
	Name     string
	Counters []shown
}

// shown is a counter as the page shows it.
type shown struct {
	Name  string
	Value uint64
	Class string // the CSS class if Value isn't zero
}

// Groups returns the counters as the page shows them.
func (c counters) Groups() []group {
	return []group{
		{"Acquired", []shown{{"from the store", c.FromStore, ""}, {"handed over", c.HandedOver, ""},
			{"re-entered", c.Reentered, ""}, {"joined", c.Joined, ""}, {"granted", c.Granted, ""}}},
		{"Not acquired", []shown{{"in time", c.NotAcquired, ""}, {"canceled", c.Canceled, ""},
			{"error", c.Failed, "warn"}}},
		{"Ended", []shown{{"released", c.Released, ""}, {"lost", c.Lost, "bad"}}},
		{"Renewals", []shown{{"done", c.Renewed, ""}, {"failed", c.NotRenewed, "warn"}}},
	}
}
