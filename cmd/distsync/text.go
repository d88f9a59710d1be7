package main

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// printable returns a name as it is printed. It quotes and escapes a name that is empty, isn't
// valid UTF-8, begins with a quote, or contains spaces or invisible characters.
func printable(name string) string {
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, hidden) ||
		strings.HasPrefix(name, `"`) {
		return quote(name)
	}
	return name
}

// quote returns a name in double quotes, with invisible characters escaped.
func quote(name string) string {
	return `"` + escapeText(strings.ReplaceAll(strings.ReplaceAll(name, `\`, `\\`), `"`, `\"`)) +
		`"`
}

// escape returns text as one line. It escapes characters that a terminal may interpret.
func escape(text string) string {
	return escapeText(strings.ReplaceAll(text, "\n", "; ")) // joined errors have newlines
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

// hidden reports whether a character is invisible, such as a control character, a space, or a mark
// that changes the text direction.
func hidden(r rune) bool { return !strconv.IsGraphic(r) || unicode.IsSpace(r) }

// columns returns the width of text in a terminal.
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

// shorten replaces the middle of text with an ellipsis if text is too wide for the given number of
// columns. It keeps twice as much of the beginning as of the end. The beginning usually says more,
// and the end distinguishes similar names.
func shorten(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	runes := []rune(text)
	from, to, room := 0, len(runes), most-1 // one column is for the ellipsis
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

// lasts formats a remaining time for people to read.
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
