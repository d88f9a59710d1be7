package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A chart plots one metric of a workload over the points' x, for some of its contenders. Both axes
// are logarithmic.
type chart struct {
	name, title string
	metric      string   // the key of the metric
	x           string   // the label of the x axis
	series      []string // the keys of the contenders, no more than there are styles
}

// The dimensions of a chart, in pixels.
const (
	chartWidth  = 860
	plotLeft    = 70
	plotRight   = 610 // the legend is to the right
	plotTop     = 40
	plotBottom  = 340
	lineHeight  = 24
	chartHeight = 400
)

// ink is the color of axes and text, a medium gray that is readable on white and on black.
const ink = "#808691"

// A style is the look of a series. The colors of the styles can be told apart on white, on black,
// and by color-blind readers, and their dashes and marks in print.
type style struct {
	colour, dash string
	mark         string // an SVG path around the origin
}

var styles = [...]style{
	{"#d55e00", "none", "M-4,-4h8v8h-8z"},
	{"#009e73", "10 4", "M0,-5L5,4H-5z"},
	{"#3b8fd4", "2 4", "M0,-5.5L5.5,0L0,5.5L-5.5,0z"},
	{"#cc79a7", "12 4 2 4", "M0,5L5,-4H-5z"},
	{"#c99700", "5 3", "M-1.5,-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z"},
}

// A line holds the data of one series.
type line struct {
	name string
	style
	at []spot
}

type spot struct{ x, y float64 }

// lines returns the series of which there are data.
func (c chart) lines(r result) (all []line) {
	for i, key := range c.series {
		store, name, _ := strings.Cut(key, "/")
		l := line{name: name + " on " + store, style: styles[i]}
		for _, p := range r.Points {
			for _, s := range p.Contenders {
				if y := s.Median[c.metric]; s.contender.key() == key && p.point.x > 0 && y > 0 {
					l.at = append(l.at, spot{p.point.x, y})
				}
			}
		}
		if len(l.at) > 0 {
			all = append(all, l)
		}
	}
	return all
}

// An axis maps figures to pixels.
type axis struct {
	low, high float64
	from, to  float64 // in pixels
}

func (a axis) place(v float64) float64 {
	return a.from + math.Log(v/a.low)/math.Log(a.high/a.low)*(a.to-a.from)
}

// newAxis returns an axis that covers the figures, and the values at its tick marks, which are
// powers of ten.
func newAxis(figures []float64, from, to float64) (a axis, marks []float64) {
	a = axis{from: from, to: to}
	a.low = math.Pow(10, math.Floor(math.Log10(slices.Min(figures))))
	a.high = math.Pow(10, math.Ceil(math.Log10(slices.Max(figures))))
	if a.high == a.low {
		a.high *= 10
	}
	for m := a.low; m <= a.high*1.001; m *= 10 {
		marks = append(marks, m)
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
	var d drawing
	d.add(
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" `+
			`height="%[2]d" font-family="sans-serif" font-size="13" fill="%s">`,
		chartWidth, chartHeight, ink)
	d.add(`<title>%s</title>`, html.EscapeString(c.title))
	d.add(`<text x="%d" y="22" font-size="15">%s</text>`, plotLeft, html.EscapeString(c.title))
	if lines := c.lines(r); len(lines) > 0 {
		c.plot(&d, lines)
	}
	d.add(`</svg>`)
	return d.String()
}

func (c chart) plot(d *drawing, lines []line) {
	var xs, ys []float64
	for _, l := range lines {
		for _, s := range l.at {
			xs, ys = append(xs, s.x), append(ys, s.y)
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	x := axis{low: xs[0], high: xs[len(xs)-1], from: plotLeft + 15, to: plotRight - 15}
	if x.high == x.low {
		x.high = 2 * x.low
	}
	y, marks := newAxis(ys, plotBottom, plotTop)
	for _, m := range marks {
		d.stroke(plotLeft, y.place(m), plotRight, y.place(m), 1, 0.3)
		d.text(plotLeft-8, y.place(m)+4, "end", short(m))
	}
	for _, v := range xs {
		d.text(x.place(v), plotBottom+20, "middle", short(v))
	}
	d.text((plotLeft+plotRight)/2, plotBottom+40, "middle", c.x)
	for i, l := range lines {
		for n := range l.at {
			l.at[n] = spot{x.place(l.at[n].x), y.place(l.at[n].y)}
		}
		d.series(l.style, l.at)
		top := float64(plotTop + lineHeight*i)
		d.series(l.style, []spot{{plotRight + 20, top}, {plotRight + 60, top}})
		d.text(plotRight+72, top+4, "start", l.name)
	}
	d.stroke(plotLeft, plotBottom, plotRight, plotBottom, 1.5, 1)
}

// series draws a line through spots, which are in pixels, and a mark at each.
func (d *drawing) series(s style, at []spot) {
	var points []string
	for _, p := range at {
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x, p.y))
		d.add(`<path d="%s" fill="%s" transform="translate(%.1f %.1f)"/>`, s.mark, s.colour, p.x,
			p.y)
	}
	d.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`,
		strings.Join(points, " "), s.colour, s.dash)
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
