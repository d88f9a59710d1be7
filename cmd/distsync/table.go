package main

import "strings"

// A table holds text in columns. It is formatted as a whole, because the width of a column depends
// on all of its cells.
type table struct {
	head []string
	rows [][]string
	// cut lists the columns that may be shortened if the screen is too narrow. The widest of them
	// is shortened first.
	cut []int
}

const (
	gap      = 2  // the space between columns
	narrowed = 12 // the minimum width of a shortened column
)

// on returns the table as text for a screen, or "" if the table has no rows.
func (t *table) on(s screen) string {
	if len(t.rows) == 0 {
		return ""
	}
	widths := t.widths(s.columns)
	var all strings.Builder
	for i, row := range append([][]string{t.head}, t.rows...) {
		var line strings.Builder
		for c, text := range row {
			text = shorten(text, widths[c])
			line.WriteString(text + strings.Repeat(" ", widths[c]-columns(text)+gap))
		}
		text := strings.TrimRight(line.String(), " ")
		if i == 0 {
			text = s.paint(bold, text)
		}
		all.WriteString(text + "\n")
	}
	return all.String()
}

// widths returns the widths of the columns. If the table is too wide for the given limit, widths
// shortens columns as far as possible. A limit of 0 means no limit.
func (t *table) widths(most int) []int {
	widths := make([]int, len(t.head))
	sum := -gap
	for c := range widths {
		widths[c] = columns(t.head[c])
		for _, row := range t.rows {
			widths[c] = max(widths[c], columns(row[c]))
		}
		sum += widths[c] + gap
	}
	for most > 0 && sum > most {
		widest := t.cut[0]
		for _, c := range t.cut {
			if widths[c] > widths[widest] {
				widest = c
			}
		}
		if widths[widest] <= narrowed {
			break
		}
		widths[widest]--
		sum--
	}
	return widths
}
