package main

import (
	"fmt"
	"strings"
)

func numbersText(set uint8) string {
	var names []string
	for n := range 8 {
		if set&(1<<n) != 0 {
			names = append(names, fmt.Sprintf("#%d", n))
		}
	}
	return strings.Join(names, ", ")
}

func (m *Line) request(r *lineRequest) string {
	switch r.kind {
	case keeping:
		return "keeping of " + numbersText(r.set)
	default:
		return fmt.Sprintf("%s of #%d", kinds[r.kind], r.number)
	}
}

func (m *Line) replyText(r *lineRequest) string {
	switch {
	case r.reply == kept && r.holder != 0:
		return fmt.Sprintf("kept, #%d has the lock for %d", r.holder, r.lasts)
	case r.reply == kept:
		return "kept"
	case r.reply == heldByAnother && r.kind == acquisition:
		return "in line"
	}
	return replies[r.reply]
}

func (m *Line) storeText(s *LineState) string {
	text := s.store.String()
	line := ""
	for _, n := range s.line {
		if n != 0 {
			line += fmt.Sprintf(" #%d", n)
		}
	}
	if line != "" {
		text += "; in line:" + line
	}
	return text
}

func (s *LineState) account(n uint8) string {
	x := &s.calls[n]
	switch {
	case x.at == within && x.lost:
		return fmt.Sprintf(" (#%d is lost)", n)
	case x.at == within:
		return fmt.Sprintf(" (#%d is in, deadline in %d)", n, x.left)
	case x.at == takenOut:
		return fmt.Sprintf(" (#%d is to be taken back)", n)
	}
	return ""
}

func (m *Line) accounts(s *LineState, r *lineRequest) string {
	if r.kind == keeping {
		return s.account(r.holder)
	}
	return s.account(r.number)
}
