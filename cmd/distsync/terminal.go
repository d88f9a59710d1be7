package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// A screen is the output of a command. columns is the width of the terminal, or 0 if there is no
// limit. colours is set if the output is in color.
type screen struct {
	io.Writer
	columns int
	colours bool
}

// screenOf returns the screen for w. If w isn't a terminal, the screen has no width limit and no
// colors.
func screenOf(w io.Writer) screen {
	s := screen{Writer: w}
	if !isTerminal(w) {
		return s
	}
	s.columns = 80
	if columns, _, err := term.GetSize(int(w.(*os.File).Fd())); err == nil && columns > 0 {
		s.columns = columns
	}
	s.colours = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return s
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ANSI codes of text styles.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint returns text in the color or style with the given ANSI code, if the screen shows colors.
func (s screen) paint(colour, text string) string {
	if !s.colours || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
