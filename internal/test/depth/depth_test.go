package depth

import (
	"flag"
	"testing"
)

var checks = flag.Int("rapid.checks", 100, "as rapid has it")

func TestChecks(t *testing.T) {
	for value, want := range map[string]int{"": 5, "change": 6, "night": 7} {
		t.Setenv(Variable, value)
		t.Run("some", func(t *testing.T) {
			Checks(t, 5, 6, 7)
			if *checks != want {
				t.Errorf("%s=%s: %d checks, want %d", Variable, value, *checks, want)
			}
		})
		if *checks != 100 {
			t.Errorf("%d checks are left behind", *checks)
		}
	}
}

func TestDepths(t *testing.T) {
	for value, now := range map[string]Depth{
		"":       Quick,
		"quick":  Quick,
		"change": Change,
		"night":  Night,
	} {
		t.Setenv(Variable, value)
		if Now() != now || Of(Quick, Change, Night) != now {
			t.Errorf("%s=%s: %v, of all %v; want %v", Variable, value, Now(),
				Of(Quick, Change, Night), now)
		}
		for d := Quick; d <= Night; d++ {
			ran := false
			t.Run("needs", func(t *testing.T) {
				Needs(t, d)
				ran = true
			})
			if ran != (now >= d) {
				t.Errorf("%s=%s: a test that needs %v ran: %v", Variable, value, d, ran)
			}
		}
	}
}

// A misspelt value doesn't count as the quickest run.
func TestUnknownDepth(t *testing.T) {
	t.Setenv(Variable, "nigth")
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Now()
}
