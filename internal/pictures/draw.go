package main

import (
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Sizes in pixels.
const (
	wide   = 760
	margin = 16
	row    = 30  // the distance between two steps
	letter = 6.7 // the average width of a letter
)

// style contains the colors for light and dark mode. A picture has its own background, since a page
// may be dark while the reader's system is in light mode.
const style = `<style>
  .card{fill:#ffffff;stroke:#d0d7de} .text{fill:#1f2328} .soft{fill:#59636e} .line{stroke:#59636e}
  .head{fill:#f6f8fa;stroke:#d0d7de} .tip{fill:#59636e} .life{stroke:#d0d7de}
  .a{fill:#2f81f7} .b{fill:#e08600} .c{fill:#8957e5} .bad{fill:#d1242f} .wrong{stroke:#d1242f}
  text{paint-order:stroke;stroke-width:3px;stroke-linejoin:round;stroke:#ffffff}
  text{font:12.5px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
  .strong{font-weight:600}
  @media (prefers-color-scheme: dark){
    .card{fill:#0d1117;stroke:#3d444d} .text{fill:#f0f6fc} .soft{fill:#9198a1}
    .line{stroke:#9198a1} .head{fill:#151b23;stroke:#3d444d} .tip{fill:#9198a1}
    .life{stroke:#3d444d} .a{fill:#4493f8} .b{fill:#d29922} .c{fill:#ab7df8}
    .bad{fill:#f85149} .wrong{stroke:#f85149} text{stroke:#0d1117}
  }
</style>
`

// A step is one line of a sequence diagram.
type step struct {
	from, to int    // lanes; if from == to, text stands beside the lane
	text     string // the label of the arrow
	refused  bool   // the arrow has no effect
	// holds is the color of the bar that marks the holder from this step on. The bar is on
	// lanes[to] or, if that is the store's lane, on lanes[from].
	holds string
	ends  bool   // whether lanes[from] stops holding the lock
	lease string // color of the store's lease from this step on; "-" ends it
}

// A sequence is a sequence diagram: parallel lanes with time going down.
type sequence struct {
	title string
	about string // text for readers who can't see the picture
	lanes []string
	store int // index of the store's lane, which shows the leases
	steps []step
	small bool // whether the picture is small, with no title, for use beside text
}

// wide and box are the widths of the picture and of a lane's name. row is the distance between two
// steps. top is where the lanes begin. All are in pixels.
func (s sequence) wide() int { return s.either(wide, 440) }
func (s sequence) box() int  { return s.either(128, 92) }
func (s sequence) row() int  { return s.either(row, 24) }
func (s sequence) top() int  { return s.either(46, 16) }

func (s sequence) either(usual, small int) int {
	if s.small {
		return small
	}
	return usual
}

func (s sequence) draw() string {
	var b strings.Builder
	bottom := s.y(len(s.steps))
	openWide(&b, s.title, s.about, s.wide(), bottom)
	for i, name := range s.lanes {
		x := s.x(i)
		fmt.Fprintf(&b, `<line class="life" x1="%d" y1="%d" x2="%d" y2="%d" stroke-width="1.5"/>`+
			"\n",
			x, s.top()+28, x, bottom-14)
		box(&b, x-s.box()/2, s.top(), s.box(), 28, name)
	}
	s.bars(&b, bottom)
	for i, st := range s.steps {
		y := s.y(i)
		switch {
		case st.text == "":
		case st.from == st.to && st.from == len(s.lanes)-1:
			write(&b, s.x(st.from)-12, y+s.either(4, -2), "end", class(st, "soft"), st.text,
				s.gap())
		case st.from == st.to:
			write(&b, s.x(st.from)+12, y+s.either(4, -2), "start", class(st, "soft"), st.text,
				s.gap()*2)
		default:
			s.arrow(&b, y, st)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (s sequence) gap() int       { return (s.wide() - 2*margin - s.box()) / (len(s.lanes) - 1) }
func (s sequence) x(lane int) int { return margin + s.box()/2 + lane*s.gap() }
func (s sequence) y(step int) int { return s.top() + 52 + step*s.row() }

// bars draws bars for the holds and for the leases in the store.
func (s sequence) bars(b *strings.Builder, bottom int) {
	type bar struct {
		from  int
		color string
	}
	open := make(map[int]bar)
	end := func(lane, y int) {
		if o, ok := open[lane]; ok {
			fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="10" height="%d" rx="3"/>`+"\n",
				o.color, s.x(lane)-5, o.from, y-o.from)
			delete(open, lane)
		}
	}
	for i, st := range s.steps {
		if st.ends {
			end(st.from, s.y(i))
		}
		if st.holds != "" {
			lane := st.to
			if lane == s.store {
				lane = st.from
			}
			end(lane, s.y(i))
			open[lane] = bar{s.y(i), st.holds}
		}
		if st.lease != "" {
			end(s.store, s.y(i))
			if st.lease != "-" {
				open[s.store] = bar{s.y(i), st.lease}
			}
		}
	}
	for lane := range s.lanes {
		end(lane, bottom-14)
	}
}

func (s sequence) arrow(b *strings.Builder, y int, st step) {
	from, to := s.x(st.from), s.x(st.to)
	side := 1
	if to < from {
		side = -1
	}
	from, to = from+7*side, to-7*side
	line, tip := "line", "tip"
	if st.refused {
		line, tip = "wrong", "bad"
	}
	fmt.Fprintf(b, `<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d" stroke-width="1.3"/>`+"\n",
		line, from, y, to-5*side, y)
	fmt.Fprintf(b, `<path class="%s" d="M%d %dl%d -4v8z"/>`+"\n", tip, to, y, -8*side)
	write(b, (from+to)/2, y-6, "middle", class(st, "text"), st.text, max(to-from, from-to))
}

func class(st step, usual string) string {
	if st.refused {
		return "bad strong"
	}
	return usual
}

// A tree is a list of yes-or-no questions. The first yes determines which store to use.
type tree struct {
	title, about string
	questions    []question
	otherwise    answer
}

type question struct {
	lines  []string
	answer answer
}

type answer struct{ name, why string }

func (t tree) draw() string {
	const high, between, left, right = 50, 26, 400, 270
	var b strings.Builder
	open(&b, t.title, t.about, 52+(len(t.questions)+1)*(high+between)-4)
	y := 50
	arrow := func(x1, y1, x2, y2 int, tip, word string, x, y int) {
		fmt.Fprintf(&b, `<line class="line" x1="%d" y1="%d" x2="%d" y2="%d" stroke-width="1.3"/>`+
			"\n",
			x1, y1, x2, y2)
		fmt.Fprintf(&b, `<path class="tip" d="%s"/>`+"\n", tip)
		write(&b, x, y, "start", "soft", word, 40)
	}
	leaf := func(x, y int, a answer) {
		box(&b, x, y, right, high, a.name, a.why)
	}
	for i, q := range t.questions {
		box(&b, margin, y, left, high, q.lines...)
		middle, below := y+high/2, y+high
		arrow(margin+left, middle, wide-margin-right-5, middle,
			fmt.Sprintf("M%d %dl-8 -4v8z", wide-margin-right, middle), "yes", margin+left+18,
			middle-6)
		leaf(wide-margin-right, y, q.answer)
		arrow(margin+left/2, below, margin+left/2, below+between-5,
			fmt.Sprintf("M%d %dl-4 -8h8z", margin+left/2, below+between), "no", margin+left/2+8,
			below+17)
		if y += high + between; i == len(t.questions)-1 {
			leaf(margin+(left-right)/2, y, t.otherwise)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func open(b *strings.Builder, title, about string, high int) {
	openWide(b, title, about, wide, high)
}

// openWide begins a picture of any width.
func openWide(b *strings.Builder, title, about string, width, high int) {
	fmt.Fprintf(b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
			`role="img" aria-label="%s">`+"\n", width, high, width, high, escape(about))
	b.WriteString(style)
	fmt.Fprintf(b, `<rect class="card" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>`+"\n",
		width-1, high-1)
	if title != "" {
		write(b, margin, 28, "start", "text strong", title, width)
	}
}

// box draws a box with one or two lines of text.
func box(b *strings.Builder, x, y, width, high int, lines ...string) {
	fmt.Fprintf(b, `<rect class="head" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n",
		x, y, width, high)
	first := y + high/2 + 5 - 9*(len(lines)-1)
	for i, line := range lines {
		write(b, x+width/2, first+18*i, "middle", "text", line, width)
	}
}

// write writes a line of text. It panics if the line is wider than the given room, in pixels.
func write(b *strings.Builder, x, y int, anchor, class, line string, room int) {
	if need := int(float64(utf8.RuneCountInString(line)) * letter); need > room {
		panic(fmt.Sprintf("%q needs %d pixels, and has %d", line, need, room))
	}
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d" text-anchor="%s">%s</text>`+"\n",
		class, x, y, anchor, escape(line))
}

func escape(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		panic(err) // a strings.Builder returns no errors
	}
	return b.String()
}
