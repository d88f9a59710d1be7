package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// A screen is the output of a command. columns is the terminal's width, or 0 for no limit. colours
// reports whether to print in colour.
type screen struct {
	io.Writer
	columns int
	colours bool
}

// screenOf returns the screen for w. If w isn't a terminal, it has neither a width nor colours.
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

// paint returns a text in a colour, if the screen has colours.
func (s screen) paint(colour, text string) string {
	if !s.colours || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
