package main

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// printable returns a name as people may see it: as it is, or in quotes and escaped if it has anything that a terminal might act
// on, that can't be seen, or that looks like quotes of ours.
func printable(name string) string {
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, hidden) || strings.HasPrefix(name, `"`) {
		return quote(name)
	}
	return name
}

// quote is strconv.Quote, but for spaces other than the ordinary one, which it escapes, too.
func quote(name string) string {
	return `"` + escapeText(strings.ReplaceAll(strings.ReplaceAll(name, `\`, `\\`), `"`, `\"`)) + `"`
}

// escape returns a text in one line, in which is escaped what a terminal might act on.
func escape(text string) string {
	return escapeText(strings.ReplaceAll(text, "\n", "; ")) // as in errors that are joined
}

func escapeText(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 || hidden(r) && r != ' ' {
			quoted := strconv.QuoteToASCII(text[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// hidden says whether a character can't be seen: a control, a space, one that changes the direction of writing.
func hidden(r rune) bool { return !strconv.IsGraphic(r) || unicode.IsSpace(r) }

// columns returns how many columns of a terminal a text takes.
func columns(text string) (n int) {
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	switch kind := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case kind == width.EastAsianWide || kind == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// shorten cuts so much out of a text that it takes no more than most columns: a third from its end is left, since what
// a name begins with says most, and what it ends with tells it from others.
func shorten(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	runes := []rune(text)
	from, to, room := 0, len(runes), most-1 // for the ellipsis
	for from < to {
		end := columns(string(runes[:from])) > 2*columns(string(runes[to:]))
		next := runes[from]
		if end {
			next = runes[to-1]
		}
		if room -= columnsOf(next); room < 0 {
			break
		}
		if end {
			to--
		} else {
			from++
		}
	}
	return string(runes[:from]) + "…" + string(runes[to:])
}

// lasts returns a time that is left as people read it.
func lasts(d time.Duration) string {
	switch {
	case d < 0:
		return "for ever"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
