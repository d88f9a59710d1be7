package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable returns a name as people may see it: as it is, or in quotes and escaped if it has anything that a terminal might act
// on, that can't be seen, or that looks like quotes of ours.
func printable(name string) string {
	if name == "" || strings.ContainsFunc(name, unsafe) || !utf8.ValidString(name) || strings.HasPrefix(name, `"`) {
		return strconv.Quote(name)
	}
	return name
}

// escape returns a text in which what a terminal might act on is escaped: a single line.
func escape(text string) string {
	var b strings.Builder
	text = strings.ReplaceAll(text, "\n", "; ") // as errors that are joined
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 || unsafe(r) && r != ' ' {
			quoted := strconv.Quote(text[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// unsafe says whether a character isn't one that can be seen, as spaces and those that change the direction of writing.
func unsafe(r rune) bool { return !strconv.IsGraphic(r) || unicode.IsSpace(r) }
