package lockdebug

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var texts = []string{
	"", "orders:42", "Überweisung 7", "заказ", "a b", `C:\x`, `say "x"`, "\x1b[31mred\x1b[0m",
	"a\x00b", "line\nbreak\ttab", "\u202egnp.exe", "\u2066x\u2069", "\u200bzero", "\ufeffbom",
	"c1 \u009b31m", "\xff\xfe", "half \xe2\x82", "\ufffd", "\U000e0001tag", "\u00a0",
	strings.Repeat("x", longest), "end" + strings.Repeat("ä", longest),
}

// The shown text is printable, and determines the original.
func FuzzText(f *testing.F) {
	for _, s := range texts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := text(s)
		for _, r := range got {
			if !strconv.IsPrint(r) {
				t.Fatalf("text(%q) = %q, with %U", s, got, r)
			}
		}
		if len(s) > longest {
			if !strings.HasSuffix(got, " bytes)") || utf8.RuneCountInString(got) > 4*longest+30 {
				t.Fatalf("text of %d bytes: %q", len(s), got)
			}
			return
		}
		if back, err := strconv.Unquote(`"` + strings.ReplaceAll(got, `"`, `\"`) +
			`"`); err != nil || back != s {
			t.Fatalf("text(%q) = %q, which is %q, %v", s, got, back, err)
		}
	})
}

// The escaped JSON has the same value as the original.
func FuzzVisible(f *testing.F) {
	for _, s := range texts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		encoded, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		got := visible(encoded)
		for _, r := range string(got) {
			if !strconv.IsPrint(r) {
				t.Fatalf("visible(%q) = %q, with %U", encoded, got, r)
			}
		}
		var back, want string
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(encoded, &want); err != nil || back != want {
			t.Fatalf("visible(%q) = %q, which is %q, not %q, %v", encoded, got, back, want, err)
		}
	})
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                         "0 ms",
		999 * time.Microsecond:               "0 ms",
		time.Second - 1:                      "999 ms",
		time.Second:                          "1.0 s",
		10*time.Second - 1:                   "9.9 s",
		10 * time.Second:                     "10 s",
		time.Minute - 1:                      "59 s",
		time.Minute:                          "1 min 0 s",
		time.Hour - 1:                        "59 min 59 s",
		time.Hour:                            "1 h 0 min",
		24*time.Hour - 1:                     "23 h 59 min",
		24 * time.Hour:                       "1 d 0 h",
		1234*24*time.Hour + 5*time.Hour + 99: "1,234 d 5 h",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestPrefersJSON(t *testing.T) {
	for accept, want := range map[string]bool{
		"":                                  false,
		"*/*":                               false,
		"application/json":                  true,
		"application/json, text/plain, */*": true,
		"Application/JSON; charset=utf-8":   true,
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": false,
		"text/html, application/json":                                     false,
		"text/html;q=0.5, application/json;q=0.6":                         true,
		"application/json;q=0":                                            false,
		"application/json;q=much":                                         false,
		";;;, application/json":                                           true,
	} {
		if got := prefersJSON([]string{accept}); got != want {
			t.Errorf("prefersJSON(%q) = %v", accept, got)
		}
	}
	if !prefersJSON([]string{"text/plain", "application/json"}) {
		t.Error("the second of two headers isn't looked at")
	}
}

// A test can't pause its process, so this one passes a loss with that reason to the page.
func TestPaused(t *testing.T) {
	rep := &report{Losses: []loss{{
		subject: subject{1, "c", newNamed("x"), "exclusive"}, Reason: "paused",
		Paused: seconds(31 * time.Second),
	}}}
	var b strings.Builder
	if err := page.Execute(&b, newView(rep, query{})); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "the process stood still for 31 s") {
		t.Error(b.String())
	}
}

// A long text isn't cut off inside a character.
func TestLongText(t *testing.T) {
	for _, before := range []string{"", "x"} {
		s := before + strings.Repeat("ä", longest)
		if got := text(s); !strings.HasPrefix(got, before+"äää") ||
			!strings.HasSuffix(got, "äää… ("+thousands(len(s))+" bytes)") {
			t.Errorf("text(%q…) = %q", s[:10], got)
		}
	}
}
