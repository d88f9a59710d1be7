package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
)

// A report holds the results of a run.
type report struct {
	Machine string
	Results []result
}

func (r report) writeJSON(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o666)
}

// rows returns the table for a point, without its header row. The columns are the store, the
// contender and the workload's metrics.
func (r result) rows(p pointResult) (rows [][]string) {
	for _, s := range p.Contenders {
		row := []string{string(s.Store), s.Name}
		for _, m := range r.workload.metrics {
			row = append(row, m.format(s.Median))
		}
		rows = append(rows, row)
	}
	return rows
}

// format returns the text of a metric's figures, with commas as thousands separators.
func (m metric) format(v values) string {
	all := []string{m.text(v, m.numbered(1))}
	for n := 2; m.numbered(n) != m.key; n++ {
		if _, ok := v[m.numbered(n)]; !ok {
			break
		}
		all = append(all, m.text(v, m.numbered(n)))
	}
	return strings.Join(all, " / ")
}

// numbered returns the key of the metric's nth figure. If the metric has only one figure, n doesn't
// matter.
func (m metric) numbered(n int) string { return strings.Replace(m.key, "#", strconv.Itoa(n), 1) }

// text returns the text of the figure with the given key.
func (m metric) text(v values, key string) string {
	x, ok := v[key]
	if !ok {
		return "–"
	}
	decimals := m.decimals
	if x >= 100 && decimals > 0 {
		decimals = 0 // more digits are useless
	}
	text := strconv.FormatFloat(x, 'f', decimals, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	return whole
}

// print writes the tables for a terminal.
func (r result) print(to io.Writer) {
	fmt.Fprintf(to, "\n== %s  %s\n", r.ID, r.Title)
	for _, missing := range r.Missing {
		fmt.Fprintln(to, "left out:", missing)
	}
	for _, p := range r.Points {
		fmt.Fprintf(to, "\n%s\n", p.Label)
		w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "\t\t%s\t\n", strings.Join(r.Metrics, "\t"))
		for _, row := range r.rows(p) {
			fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
		}
		w.Flush()
	}
	for _, failure := range r.Failures {
		fmt.Fprintln(to, "failed:", failure)
	}
}

// markdown returns the tables for a page.
func (r result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.About)
	for _, missing := range r.Missing {
		text, _, _ := strings.Cut(missing, "\n")
		fmt.Fprintf(&b, "\nLeft out: %s\n", text)
	}
	for _, p := range r.Points {
		fmt.Fprintf(&b, "\n**%s**\n\n| | | %s |\n|---|---|%s\n", p.Label,
			strings.Join(r.Metrics, " | "), strings.Repeat("---:|", len(r.Metrics)))
		for _, row := range r.rows(p) {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	for _, failure := range r.Failures {
		text, _, _ := strings.Cut(failure, "\n")
		fmt.Fprintf(&b, "\nNot measured: %s\n", text)
	}
	return b.String()
}

// publish writes the tables to a Markdown page, between the page's markers, and the charts to a
// folder next to it. It creates the page if there is none.
func (r report) publish(dir string) error {
	path := filepath.Join(dir, "performance-tables.md")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	page := string(text)
	if page == "" {
		page = "# Performance: the tables\n"
	}
	page = between(page, "machine", "", r.Machine+"\n")
	charts := filepath.Join(dir, "performance")
	if err := os.MkdirAll(charts, 0o777); err != nil {
		return err
	}
	for _, res := range r.Results {
		page = between(page, res.ID, fmt.Sprintf("%s: %s", res.ID, res.Title), res.markdown())
		if c := res.workload.chart; c.name != "" {
			file := filepath.Join(charts, c.name+".svg")
			if err := os.WriteFile(file, []byte(c.draw(res)), 0o666); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(path, []byte(page), 0o666)
}

// between replaces the text between two markers of a page, and returns the new page. If the page
// has no markers with the given name, it appends them and the text, under a heading.
func between(page, name, heading, text string) string {
	begin, end := fmt.Sprintf("<!-- bench:%s -->\n", name),
		fmt.Sprintf("<!-- /bench:%s -->\n", name)
	head, rest, ok := strings.Cut(page, begin)
	if ok {
		if _, tail, ok := strings.Cut(rest, end); ok {
			return head + begin + text + end + tail
		}
	}
	if heading != "" {
		page += "\n## " + heading + "\n"
	}
	return page + "\n" + begin + text + end
}
