package history

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// WriteText writes all calls, and the steps that reached the store, in the order in which they
// began.
func (r *Recorder) WriteText(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, o := range r.ops {
		lines = append(lines, line{
			o.call, fmt.Sprintf("%-16v %-16v %s user %d: %v%s", o.call, o.ret, o.name, o.user, o,
				because(o.err)),
		})
	}
	for _, s := range r.steps {
		lines = append(lines, line{
			s.call, fmt.Sprintf("%-16v %-16v %s     %v", s.call, s.ret, s.name, s),
		})
	}
	slices.SortFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l.text); err != nil {
			return err
		}
	}
	return nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return " (" + err.Error() + ")"
}

// String describes a step and its answer.
func (s *step) String() string {
	kind := [...]string{"acquire", "renew", "release", "force-release", "keep the place of",
		"has heard of a grant to"}[s.kind]
	if s.reentry {
		kind = "re-enter"
	}
	number := s.owner
	if len(number) > 4 {
		number = number[:4] + "…" + number[max(len(number)-4, 4):]
	}
	made := ""
	if s.op != nil {
		made = fmt.Sprintf(" for user %d", s.op.user)
	}
	if s.place > 0 {
		made += fmt.Sprintf(", who has waited for %v and wants a place for %v", s.waited, s.place)
	}
	if s.permits > 0 {
		made += fmt.Sprintf(", of %d permits", s.permits)
	}
	answer := [...]string{"unknown", "granted", "freed", "refused", "not carried out"}[s.result]
	if s.token != 0 {
		answer += fmt.Sprintf(" as number %d", s.token)
	}
	return fmt.Sprintf("%v: %s %s, %v%s → %s", s.side, kind, number, s.lease, made, answer)
}
