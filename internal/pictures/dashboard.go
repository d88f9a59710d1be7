package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// dashboardFile is the path of the Grafana dashboard, relative to the root of the repository.
var dashboardFile = filepath.Join("oteldlock", "examples", "monitoring", "dashboard.json")

// Sizes of the dashboard's picture, in pixels. Grafana divides the width into 24 columns.
const (
	column      = 42
	unit        = 16  // the height of one step of the grid
	smallLetter = 6.1 // the average width of a letter in a legend
	dashboardW  = 24*column + 2*margin
)

// dashboardStyle holds the styles that only the dashboard's picture needs.
const dashboardStyle = `<style>
  .la{stroke:#2f81f7} .lb{stroke:#e08600} .lc{stroke:#8957e5} .ld{stroke:#d1242f}
  polyline{fill:none;stroke-width:1.6} .d{fill:#d1242f}
  text.small{font-size:11px} text.big{font-size:28px;font-weight:600}
  @media (prefers-color-scheme: dark){
    .la{stroke:#4493f8} .lb{stroke:#d29922} .lc{stroke:#ab7df8} .ld{stroke:#f85149}
    .d{fill:#f85149}
  }
</style>
`

// A dashboard holds the parts of Grafana's JSON that the picture shows.
type dashboard struct {
	Panels []panel `json:"panels"`
}

type panel struct {
	Type    string                   `json:"type"`
	Title   string                   `json:"title"`
	GridPos struct{ X, Y, W, H int } `json:"gridPos"`
	Targets []struct {
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

// readDashboard reads the dashboard of the repository at root.
func readDashboard(root string) (d dashboard, err error) {
	text, err := os.ReadFile(filepath.Join(root, dashboardFile))
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
}

// draw draws the panels in Grafana's layout, with made-up curves.
func (d dashboard) draw() string {
	const top = 44
	var titles []string
	high := 0
	for _, p := range d.Panels {
		high = max(high, p.GridPos.Y+p.GridPos.H)
		if p.Type != "row" {
			titles = append(titles, p.Title)
		}
	}
	var b strings.Builder
	openWide(&b, "The dashboard in Grafana; curves and numbers are examples",
		"A dashboard with the panels "+strings.Join(titles, "; ")+".",
		dashboardW, top+high*unit+margin)
	b.WriteString(dashboardStyle)
	for _, p := range d.Panels {
		p.draw(&b, margin+p.GridPos.X*column, top+p.GridPos.Y*unit,
			p.GridPos.W*column, p.GridPos.H*unit)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// colours lists the style classes of a panel's curves, in order.
var colours = []string{"a", "b", "c", "d"}

// examples maps the titles of panels with a single number to made-up numbers. Other such panels
// show 0.
var examples = map[string]string{"Held": "128", "Waiting": "9"}

func (p panel) draw(b *strings.Builder, x, y, width, high int) {
	if p.Type == "row" {
		write(b, x, y+12, "start", "text strong", p.Title, width)
		return
	}
	fmt.Fprintf(b, `<rect class="head" x="%d" y="%d" width="%d" height="%d" rx="4"/>`+"\n",
		x+3, y+3, width-6, high-6)
	write(b, x+12, y+20, "start", "text", p.Title, width-20)
	if p.Type == "stat" {
		number := examples[p.Title]
		if number == "" {
			number = "0"
		}
		write(b, x+width/2, y+high-14, "middle", "text big", number, width)
		return
	}
	names := p.curves()
	for i := range names {
		p.curve(b, i, x+12, y+30, width-24, high-58)
	}
	at := float64(x + 12)
	for i, name := range names {
		fmt.Fprintf(b, `<circle class="%s" cx="%.0f" cy="%d" r="3"/>`+"\n", colours[i], at+3,
			y+high-15)
		write(b, int(at)+9, y+high-11, "start", "soft small", name, width)
		at += 9 + smallLetter*float64(utf8.RuneCountInString(name))
		if at > float64(x+width) {
			panic(fmt.Sprintf("the legend of %q is too wide", p.Title))
		}
		at += 7
	}
}

// label matches the metric label that a legend begins with, as in {{distsync_kind}}.
var label = regexp.MustCompile(`^\{\{(?:distsync_)?(\w+)\}\}(?:: )?`)

// curves returns the legends of a panel's curves. If the panel has a single query with one curve
// per label value, it returns two legends: "each" followed by the label's name, and "…".
func (p panel) curves() (names []string) {
	for _, t := range p.Targets {
		name := t.LegendFormat
		if m := label.FindStringSubmatch(name); m != nil {
			rest := label.ReplaceAllString(strings.TrimPrefix(name, m[0]), "$1")
			if len(p.Targets) == 1 {
				each := strings.TrimSuffix(strings.ReplaceAll("each "+m[1]+" and "+rest, "_", " "),
					" and ")
				names = append(names, each, "…")
				continue
			}
			name = rest
		}
		names = append(names, name)
	}
	return names[:min(len(names), len(colours))]
}

// curve draws a made-up curve. Its shape depends only on the panel's title and on i, so the picture
// changes only if the dashboard does.
func (p panel) curve(b *strings.Builder, i, x, y, width, high int) {
	hash := fnv.New32a()
	fmt.Fprint(hash, p.Title, i)
	seed := float64(hash.Sum32()%1000) / 100
	level := 0.25 + 0.5*float64(i)/float64(max(len(p.curves())-1, 1))
	fmt.Fprintf(b, `<polyline class="l%s" points="`, colours[i])
	for step := range 41 {
		at := float64(step) / 3
		wave := 0.12*math.Sin(at+seed) + 0.06*math.Sin(3.1*at+2*seed) + 0.04*math.Sin(7.3*at+3*seed)
		fmt.Fprintf(b, "%d,%d ", x+width*step/40, y+int(float64(high)*(level+wave)))
	}
	b.WriteString("\"/>\n")
}
