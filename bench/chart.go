package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A chart plots one metric of a workload, as lines over x or as groups of bars with one group per
// point. A line chart omits points without an x.
type chart struct {
	name, title string
	metric      string // the key of the metric
	x           string // the label of the x axis
	bars        bool
	logX, logY  bool
}

// The dimensions of a chart, in pixels.
const (
	chartWidth  = 860
	plotLeft    = 70
	plotRight   = 610 // the legend is to the right
	plotTop     = 40
	plotBottom  = 340
	lineHeight  = 18
	chartHeight = 400
)

// ink is the color of lines and text, a medium gray that is readable on white and on black.
const ink = "#808691"

// A palette lists the colors of a store's contenders, by role. All charts use the same palettes.
type palette struct{ ours, peers, floors []string }

var palettes = map[store]palette{
	onRedis: {
		[]string{"#e5484d", "#f2a0a2"}, []string{"#b8561c", "#e8913a"},
		[]string{"#a09088", "#6f625c"},
	},
	onValkey: {
		[]string{"#3b82f6", "#93bdf5"}, []string{"#7c5cd6", "#b49cf0"},
		[]string{"#8894a8", "#5c6780"},
	},
	onEtcd: {
		[]string{"#2f9e44", "#8fce9b"}, []string{"#7a8f1f", "#b5c334"},
		[]string{"#8fa08f", "#617061"},
	},
	onPostgres: {[]string{"#0e9aa7", "#7fd0d8"}, []string{"#c2549d", "#e39ccb"},
		[]string{"#8b9a9c", "#5d6b6d"}},
	onMemory: {[]string{"#3b82f6", "#93bdf5"}, []string{"#7c5cd6"}, []string{"#8894a8"}},
}

// init makes stores with three servers reuse the palettes of other stores. No chart shows two
// stores that share a palette.
func init() {
	palettes[onThree], palettes[onTwo], palettes[onHanging] = palettes[onRedis], palettes[onValkey],
		palettes[onEtcd]
}

// colour returns the color of a contender. drawn counts the contenders that already have a color,
// per store and role, so that each contender gets the next color of its palette.
func (c contender) colour(drawn map[string]int) string {
	p := palettes[c.store]
	kind, list := "floor", p.floors
	switch {
	case c.role == ours:
		kind, list = "ours", p.ours
	case c.role == peer:
		kind, list = "peer", p.peers
	}
	kind = string(c.store) + kind
	drawn[kind]++
	return list[(drawn[kind]-1)%len(list)]
}

// A line holds one contender's data in a chart, drawn as a line or as bars.
type line struct {
	name   string
	colour string
	dashed bool // not a lock of this repository
	at     []spot
}

type spot struct{ x, y float64 }

// lines returns one line per contender. In a bar chart, the x of a spot is the index of its point.
func (c chart) lines(r result) (all []line) {
	for i, p := range r.Points {
		x := p.point.x
		if c.bars {
			x = float64(i)
		} else if x == 0 {
			continue
		}
		drawn := make(map[string]int)
		for _, s := range p.Contenders {
			colour := s.contender.colour(drawn)
			y, ok := s.Median[c.metric]
			if !ok || c.logY && y <= 0 {
				continue
			}
			name := string(s.Store) + ": " + s.Name
			at := slices.IndexFunc(all, func(l line) bool { return l.name == name })
			if at < 0 {
				at = len(all)
				all = append(all, line{
					name: name, colour: colour, dashed: s.contender.role != ours,
				})
			}
			all[at].at = append(all[at].at, spot{x, y})
		}
	}
	return all
}

// An axis maps figures to pixels.
type axis struct {
	low, high float64
	from, to  float64 // in pixels
	log       bool
}

func (a axis) place(v float64) float64 {
	share := (v - a.low) / (a.high - a.low)
	if a.log {
		share = math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return a.from + share*(a.to-a.from)
}

// newAxis returns an axis that covers the figures, and the values at its tick marks. A linear axis
// starts at 0.
func newAxis(figures []float64, log bool, from, to float64) (a axis, marks []float64) {
	low, high := slices.Min(figures), slices.Max(figures)
	a = axis{from: from, to: to, log: log}
	if log {
		a.low, a.high = math.Pow(10, math.Floor(math.Log10(low))),
			math.Pow(10, math.Ceil(math.Log10(high)))
		if a.high == a.low {
			a.high *= 10
		}
		for m := a.low; m <= a.high*1.001; m *= 10 {
			marks = append(marks, m)
		}
		return a, marks
	}
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high)))
	for _, finer := range []float64{2, 2.5} { // the final step is 1, 2 or 5 times a power of ten
		if high/step < 4 {
			step /= finer
		}
	}
	a.high = math.Ceil(high/step) * step
	for i := 0.0; i*step <= a.high*1.001; i++ {
		marks = append(marks, i*step)
	}
	return a, marks
}

// drawing is an SVG under construction.
type drawing struct{ strings.Builder }

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, anchor, text string) {
	d.add(`<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor,
		html.EscapeString(text))
}

func (d *drawing) stroke(x1, y1, x2, y2, width, opacity float64) {
	d.add(
		`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g" `+
			`opacity="%g"/>`,
		x1, y1, x2, y2, ink, width, opacity)
}

// draw returns the chart as SVG.
func (c chart) draw(r result) string {
	lines := c.lines(r)
	var d drawing
	height := max(chartHeight, plotTop+lineHeight*(len(lines)+1))
	d.add(
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" `+
			`height="%[2]d" font-family="sans-serif" font-size="12" fill="%s">`,
		chartWidth, height, ink)
	d.add(`<title>%s</title>`, html.EscapeString(c.title))
	d.add(`<text x="%d" y="22" font-size="15">%s</text>`, plotLeft, html.EscapeString(c.title))
	if len(lines) > 0 {
		c.plot(&d, r, lines)
	}
	d.add(`</svg>`)
	return d.String()
}

func (c chart) plot(d *drawing, r result, lines []line) {
	var xs, ys []float64
	for _, l := range lines {
		for _, s := range l.at {
			xs, ys = append(xs, s.x), append(ys, s.y)
		}
	}
	y, marks := newAxis(ys, c.logY, plotBottom, plotTop)
	for _, m := range marks {
		d.stroke(plotLeft, y.place(m), plotRight, y.place(m), 1, 0.3)
		d.text(plotLeft-8, y.place(m)+4, "end", short(m))
	}
	for i, l := range lines {
		top := float64(plotTop + i*lineHeight)
		d.add(`<rect x="%d" y="%.1f" width="14" height="10" fill="%s" opacity="%g"/>`, plotRight+20,
			top, l.colour, l.opacity())
		d.text(plotRight+40, top+9, "start", l.name)
	}
	if c.bars {
		c.plotBars(d, r, lines, y)
	} else {
		c.plotLines(d, lines, xs, y)
	}
	d.stroke(plotLeft, plotBottom, plotRight, plotBottom, 1.5, 1)
}

// opacity returns the opacity of the line. It is lower for locks of other packages, so that those
// of this repository stand out.
func (l line) opacity() float64 {
	if l.dashed {
		return 0.75
	}
	return 1
}

func (c chart) plotLines(d *drawing, lines []line, xs []float64, y axis) {
	x := axis{
		low: slices.Min(xs), high: slices.Max(xs), from: plotLeft + 15, to: plotRight - 15,
		log: c.logX,
	}
	if x.high == x.low {
		x.high = 2 * x.low
	}
	slices.Sort(xs)
	for _, v := range slices.Compact(xs) {
		d.text(x.place(v), plotBottom+20, "middle", short(v))
	}
	d.text((plotLeft+plotRight)/2, plotBottom+40, "middle", c.x)
	for _, l := range lines {
		style, width := "", 3
		if l.dashed {
			style, width = ` stroke-dasharray="6 4"`, 2
		}
		var points []string
		for _, s := range l.at {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.place(s.x), y.place(s.y)))
			d.add(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x.place(s.x), y.place(s.y),
				l.colour)
		}
		d.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="%d"%s/>`,
			strings.Join(points, " "), l.colour, width, style)
	}
}

func (c chart) plotBars(d *drawing, r result, lines []line, y axis) {
	group := float64(plotRight-plotLeft) / float64(len(r.Points))
	for i, p := range r.Points {
		words := strings.SplitAfter(p.Label, ", ")
		for n, part := range words {
			d.text(plotLeft+group*(float64(i)+0.5), float64(plotBottom+16+14*n), "middle",
				strings.TrimSuffix(part, ", "))
		}
	}
	width := 0.85 * group / float64(len(lines))
	for n, l := range lines {
		for _, s := range l.at {
			left := plotLeft + group*(s.x+0.075) + width*float64(n)
			top := y.place(s.y)
			d.add(
				`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" opacity="%g">`+
					`<title>%s: %s</title></rect>`,
				left, top, width*0.9, plotBottom-top, l.colour, l.opacity(),
				html.EscapeString(l.name), short(s.y))
		}
	}
}

// short formats a figure in few characters.
func short(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e6, "M"}, {1e3, "k"}} {
		if v >= unit.size {
			return strconv.FormatFloat(math.Round(v/unit.size*100)/100, 'g', -1, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
