package lockdebug

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// longest is the maximum length in bytes of a text on the page.
const longest = 512

// text returns s in a form that is safe to show. Backslashes, and characters that aren't printable
// or change the direction of the text, are escaped as in a Go string. A very long text is
// truncated.
func text(s string) string {
	rest := ""
	if len(s) > longest {
		end := longest
		for end > longest-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s, rest = s[:end], fmt.Sprintf("… (%s bytes)", thousands(len(s)))
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + rest
}

// typed returns s if a person could have typed it, and "" otherwise.
func typed(s string) string {
	if !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return ""
	}
	return s
}

// visible escapes unprintable characters in encoded JSON, because people also read it in terminals.
func visible(encoded []byte) []byte {
	out := make([]byte, 0, len(encoded))
	for _, r := range string(encoded) {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// duration formats a duration for people, using its two largest units.
func duration(d time.Duration) string {
	d = max(d, 0)
	whole := func(d, unit time.Duration) int64 { return int64(d / unit) }
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", whole(d, time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", whole(d, time.Minute), whole(d%time.Minute, time.Second))
	case d < day:
		return fmt.Sprintf("%d h %d min", whole(d, time.Hour), whole(d%time.Hour, time.Minute))
	default:
		return fmt.Sprintf("%s d %d h", thousands(whole(d, day)), whole(d%day, time.Hour))
	}
}

// thousands formats a non-negative integer with its digits in groups of three.
func thousands(n any) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
