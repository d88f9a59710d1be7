package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed951563bd/distsync/dlock"
)

// Names that a terminal might act on, or that people would be deceived by.
var nasty = []string{
	"\x1b[31mred\x1b[0m", "\x1b]0;title\a", "a\nb", "tab\there", "\r gone", "nul\x00",
	"c1\u009b31m", "del\x7f",
	"right\u202eto left", "isolate\u2066x\u2069", "zero\u200bwidth", "\ufeffbom", "bad\xff\xfeutf8",
	"\xed\xa0\x80", `"quoted"`, `"`, "", " ",
	"no\u00a0break", "line\u2028separator", "tag\U000e0041", "soft\u00adhyphen",
}

func TestPrintable(t *testing.T) {
	for _, name := range nasty {
		for what, text := range map[string]string{
			"printable": printable(name),
			"escape":    escape("x" + name),
			"quote":     quote(name),
		} {
			if !utf8.ValidString(text) ||
				strings.ContainsFunc(text, func(r rune) bool { return hidden(r) && r != ' ' }) {
				t.Errorf("%s(%q) = %q", what, name, text)
			}
		}
		if got := printable(name); !strings.HasPrefix(got, `"`) || !strings.HasSuffix(got, `"`) ||
			len(got) < 2 {
			t.Errorf("%q is printed as %s, without quotes", name, got)
		}
	}
	for _, name := range []string{"orders:42", "größe", "锁", "{a}b", `back\slash`, "smile🙂", "it's",
		"e\u0301"} {
		if got := printable(name); got != name {
			t.Errorf("%q is printed as %s", name, got)
		}
	}
	seen := make(map[string]string)
	for _, name := range append(nasty, `a\nb`, `bad\xff\xfeutf8`, `\"quoted\"`) {
		got := printable(name)
		if other, twice := seen[got]; twice {
			t.Errorf("%q and %q are both printed as %s", name, other, got)
		}
		seen[got] = name
	}
}

func FuzzPrintable(f *testing.F) {
	for _, name := range nasty {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, text := range []string{printable(name), escape(name)} {
			if !utf8.ValidString(text) ||
				strings.ContainsFunc(text, func(r rune) bool { return hidden(r) && r != ' ' }) {
				t.Errorf("%q: %q", name, text)
			}
		}
		var out bytes.Buffer
		if err := printJSON(&out, jsonName(name)); err != nil {
			t.Fatal(err)
		}
		line := strings.TrimSuffix(out.String(), "\n")
		if strings.ContainsFunc(line, func(r rune) bool { return hidden(r) && r != ' ' }) {
			t.Errorf("%q: %q", name, line)
		}
		var back nameJSON
		if err := json.Unmarshal([]byte(line), &back); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if back.Base64 != nil {
			back.Name = string(back.Base64)
		}
		if back.Name != name {
			t.Errorf("%q came back as %q", name, back.Name)
		}
	})
}

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"orders:42", 9, "orders:42"},
		{"orders:42", 8, "order…42"},
		{"orders:42", 2, "o…"},
		{"orders:42", 1, "…"},
		{"锁锁锁锁", 8, "锁锁锁锁"},
		{"锁锁锁锁", 7, "锁锁…锁"},
		{"锁锁锁锁", 4, "锁…"},
		{"e\u0301e\u0301", 2, "e\u0301e\u0301"},
	} {
		got := shorten(c.text, c.most)
		if got != c.want || columns(got) > c.most {
			t.Errorf("%q in %d columns is %q (%d columns), want %q", c.text, c.most, got,
				columns(got), c.want)
		}
	}
}

func TestTableFits(t *testing.T) {
	long := strings.Repeat("long-", 30)
	tab := table{
		head: []string{"NAME", "KIND", "HOLDER"}, cut: []int{2, 0}, rows: [][]string{
			{long, "exclusive", long}, {"短い名前", "read", "x"},
		},
	}
	for _, most := range []int{60, 80, 120} {
		for line := range strings.Lines(tab.on(screen{columns: most})) {
			if n := columns(strings.TrimSpace(line)); n > most {
				t.Errorf("%d columns on a screen of %d: %s", n, most, line)
			}
		}
	}
	if text := tab.on(screen{}); strings.Count(text, long) != 2 || strings.Contains(text, "\x1b") {
		t.Errorf("where there is no terminal: %s", text)
	}
}

// That nobody is inside a lock that stays taken is said, to people and to programs.
func TestDescribeWhatIsKept(t *testing.T) {
	for _, kept := range []bool{false, true} {
		l := dlock.LockInfo{
			Name: "once:job@now", Holders: []dlock.Holder{{
				ID: "a:1", Client: "a", Count: 1, Remaining: time.Minute, Kept: kept,
			}},
		}
		if text := describe(screen{}, &l); strings.Contains(text,
			"1m0s, released and kept") != kept {
			t.Errorf("kept %v: %s", kept, text)
		}
		if got := jsonLock(&l).Holders[0].Kept; got != kept {
			t.Errorf("kept %v: as JSON %v", kept, got)
		}
		if text := lastsLongest(&l); strings.Contains(text, "1m0s, kept") != kept {
			t.Errorf("kept %v: in a list %q", kept, text)
		}
	}
	both := dlock.LockInfo{Holders: []dlock.Holder{
		{ID: "a:1", Count: 1, Remaining: time.Minute, Kept: true},
		{ID: "b:1", Count: 1, Remaining: time.Second},
	}}
	if text := lastsLongest(&both); strings.Contains(text, "kept") {
		t.Errorf("one of two has it: %q", text)
	}
}
