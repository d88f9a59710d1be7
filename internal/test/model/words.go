package main

import "fmt"

// The functions in this file format the text of traces.

func (m *Holds) name(g int) string {
	client := m.client(g)
	if client == 1 {
		g -= m.Goroutines[0]
	}
	return fmt.Sprintf("%c%d", 'A'+client, g+1)
}

func (m *Holds) who(r request) string {
	if r.who == watchdog {
		return "watchdog"
	}
	return m.name(int(r.who))
}

func (m *Holds) leaseText(lease uint8) string {
	if m.Fixed == 0 {
		return ""
	}
	return fmt.Sprintf(" with lease %d", lease)
}

func (e entry) String() string {
	if e.number == 0 {
		return "free"
	}
	return fmt.Sprintf("#%d x%d, ttl %d", e.number, e.count, e.left)
}

func (s *HoldsState) account(n uint8) string {
	x := &s.numbers[n]
	switch {
	case x.use == live && x.lost != 0:
		return " (its account: lost)"
	case x.use == live && x.count > 0:
		return fmt.Sprintf(" (its account: x%d, deadline in %d)", x.count, x.left)
	case x.use == retired:
		return " (to be taken back)"
	}
	return ""
}
