package lockdebug

import (
	"cmp"
	"slices"
	"strings"
)

// A row is an entry that a search can match, in a table or in a list of the JSON output.
type row interface{ words() []string } // the texts that a search looks at

func (l loss) words() []string   { return []string{l.Name, l.Kind, l.Holder, l.Reason, l.By} }
func (h hold) words() []string   { return []string{h.Name, h.Kind, h.Holder, h.By, h.Caller} }
func (w wait) words() []string   { return []string{w.Name, w.Kind, w.Client, w.By, w.Caller} }
func (s shard) words() []string  { return []string{s.Name, s.State, s.Error} }
func (m member) words() []string { return []string{m.Client, m.Address, m.State, m.List} }
func (l lock) words() []string   { return []string{l.Name, l.Kind} }

// matches reports whether a row contains a text, ignoring case.
func matches(r row, text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(r.words(), func(word string) bool {
		return strings.Contains(strings.ToLower(word), text)
	})
}

// keep drops the rows that don't contain the text, but only in the lists that can be long.
func (r *report) keep(text string) {
	r.Losses, r.Holds, r.Waits = only(r.Losses, text), only(r.Holds, text), only(r.Waits, text)
}

func only[T row](all []T, text string) []T {
	return slices.DeleteFunc(all, func(r T) bool { return !matches(r, text) })
}

// columns contains the columns by which a table can be sorted. It maps the name of each to a
// function that compares two rows.
type columns[T row] map[string]func(a, b T) int

// The columns of each table. Sorting by a column sorts every table that has a column with that
// name.
var (
	byLoss = columns[loss]{
		"name":   func(a, b loss) int { return cmp.Compare(a.Name, b.Name) },
		"why":    func(a, b loss) int { return cmp.Compare(a.Reason, b.Reason) },
		"holder": func(a, b loss) int { return cmp.Compare(a.Holder, b.Holder) },
		"for":    func(a, b loss) int { return cmp.Compare(a.Held, b.Held) },
		"lost":   func(a, b loss) int { return cmp.Compare(a.ago, b.ago) },
	}
	byHold = columns[hold]{
		"name":   func(a, b hold) int { return cmp.Compare(a.Name, b.Name) },
		"holder": func(a, b hold) int { return cmp.Compare(a.Holder, b.Holder) },
		"by":     func(a, b hold) int { return cmp.Compare(a.By, b.By) },
		"for":    func(a, b hold) int { return cmp.Compare(a.Held, b.Held) },
		"ends":   func(a, b hold) int { return cmp.Compare(a.Remaining, b.Remaining) },
	}
	byWait = columns[wait]{
		"name":   func(a, b wait) int { return cmp.Compare(a.Name, b.Name) },
		"client": func(a, b wait) int { return cmp.Compare(a.Client, b.Client) },
		"by":     func(a, b wait) int { return cmp.Compare(a.By, b.By) },
		"place":  func(a, b wait) int { return cmp.Compare(a.Place, b.Place) },
		"for":    func(a, b wait) int { return cmp.Compare(a.Waited, b.Waited) },
		"ends": func(a, b wait) int { // calls without a deadline come last
			return cmp.Or(compareBools(a.Until.IsZero(), b.Until.IsZero()),
				cmp.Compare(a.left, b.left))
		},
	}
	byShard = columns[shard]{
		"name":  func(a, b shard) int { return cmp.Compare(a.Name, b.Name) },
		"state": func(a, b shard) int { return cmp.Compare(a.State, b.State) },
		"token": func(a, b shard) int { return cmp.Compare(a.Token, b.Token) },
		"for":   func(a, b shard) int { return cmp.Compare(a.For, b.For) },
	}
	byMember = columns[member]{
		"client":  func(a, b member) int { return cmp.Compare(a.Client, b.Client) },
		"address": func(a, b member) int { return cmp.Compare(a.Address, b.Address) },
		"state":   func(a, b member) int { return cmp.Compare(a.State, b.State) },
		"seats":   func(a, b member) int { return slices.Compare(a.Seats, b.Seats) },
		"list":    func(a, b member) int { return cmp.Compare(a.List, b.List) },
	}
	byLock = columns[lock]{
		"name": func(a, b lock) int { return cmp.Compare(a.Name, b.Name) },
		"line": func(a, b lock) int { return cmp.Compare(len(a.Line), len(b.Line)) },
	}
)

// sortable lists the names of all columns that tables can be sorted by.
var sortable = []string{"name", "why", "holder", "for", "lost", "by", "ends", "client", "place",
	"state",
	"token", "address", "seats", "list", "line"}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// sortBy sorts rows by a column, if their table has that column. The sort is stable.
func sortBy[T row](all []T, by string, known columns[T]) {
	name, down := strings.CutPrefix(by, "-")
	compare, ok := known[name]
	switch {
	case !ok:
	case down:
		slices.SortStableFunc(all, func(a, b T) int { return compare(b, a) })
	default:
		slices.SortStableFunc(all, compare)
	}
}

// A column describes the heading of one column of a table.
type column struct {
	Title  string
	Number bool
	Sorted string // "ascending", "descending", or empty
	URL    string // link that sorts by this column
}

// Column returns the heading of a column of text. The first click sorts from A to Z, the next
// one from Z to A.
func (r rows[T]) Column(name, title string) column { return r.column(name, title, "") }

// Number returns the heading of a column of numbers. The first click puts the largest number
// first, the next one the smallest.
func (r rows[T]) Number(name, title string) column {
	c := r.column(name, title, "-")
	c.Number = true
	return c
}

func (r rows[T]) column(name, title, first string) column {
	c := column{Title: title}
	q := r.query
	switch q.sort {
	case name:
		c.Sorted = "ascending"
	case "-" + name:
		c.Sorted = "descending"
	}
	if q.sort == first+name {
		first = map[string]string{"": "-", "-": ""}[first]
	}
	q.sort = first + name
	c.URL = q.url() + "#" + r.id
	return c
}
