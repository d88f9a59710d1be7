package main

import "strings"

// A table is printed when it is complete: its columns are as wide as what is in them.
type table struct {
	head []string
	rows [][]string
	cut  []int // the columns whose texts may be cut where the screen is too narrow, the one to begin with first
}

const (
	gap      = 2  // between columns
	narrowed = 12 // no column is cut to less
)

// on returns the table as it is on a screen: nothing if it has no rows.
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

// widths returns how wide the columns are, together no more than most unless that is 0 or can't be.
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
