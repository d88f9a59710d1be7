package deep

import (
	"flag"
	"testing"
)

var checks = flag.Int("rapid.checks", 100, "as rapid has it")

func TestChecks(t *testing.T) {
	for value, want := range map[string]int{"": 100, "1": 7} {
		t.Setenv(Variable, value)
		t.Run("some", func(t *testing.T) {
			Checks(t, 7)
			if *checks != want {
				t.Errorf("%s=%s: %d checks, want %d", Variable, value, *checks, want)
			}
		})
		if *checks != 100 {
			t.Errorf("%d checks are left behind", *checks)
		}
	}
}

func TestDeep(t *testing.T) {
	for value, deep := range map[string]bool{"": false, "0": false, "1": true} {
		t.Setenv(Variable, value)
		want, ran := 2, false
		if deep {
			want = 3
		}
		t.Run("only", func(t *testing.T) {
			Only(t)
			ran = true
		})
		if Run() != deep || ran != deep || Of(2, 3) != want {
			t.Errorf("%s=%s: %v, ran %v, %d", Variable, value, Run(), ran, Of(2, 3))
		}
	}
}
