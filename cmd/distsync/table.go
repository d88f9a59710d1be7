package main

import "strings"

// A table is printed when it is complete, because the width of a column depends on all its texts.
type table struct {
	head []string
	rows [][]string
	// the columns that are shortened if the screen is too narrow, the widest first
	cut []int
}

const (
	gap      = 2  // the space between columns
	narrowed = 12 // the minimum width of a shortened column
)

// on returns the table formatted for a screen, or "" if it has no rows.
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

// widths returns the widths of the columns. With the gaps, they add up to at most most, unless that
// is 0 or too small for the table.
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
