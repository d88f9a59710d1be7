package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// A screen is where a command writes: how many columns it has, 0 for no end, and whether colours are wanted there.
type screen struct {
	io.Writer
	columns int
	colours bool
}

// screenOf returns what w is written to.
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

// isTerminal says whether a person sees what is written there, or types what is read.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colours, as the numbers that a terminal knows them by.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint returns a text in a colour, where colours are wanted.
func (s screen) paint(colour, text string) string {
	if !s.colours || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
