package main

import (
	"testing"
)

// TestProtocol explores the smaller runs. The unchanged protocol has all properties, except those
// that are known not to hold. Each broken rule violates the properties that it protects.
func TestProtocol(t *testing.T) {
	for _, r := range runs() {
		if r.big {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			res := r.explore(r.breaks)
			if s := r.surprise(res); s != "" {
				t.Errorf("%s, in %d states", s, res.States)
				for _, v := range res.Found {
					t.Logf("%s:", v.Property)
					for i, line := range v.Trace {
						t.Logf("%4d %s", i+1, line)
					}
				}
			}
		})
	}
}

// TestEveryRule fails if no run shows the effect of a mutation.
func TestEveryRule(t *testing.T) {
	shown := map[mutation]bool{}
	for _, r := range runs() {
		if r.mutant != unchanged && len(r.breaks) > 0 && !r.big {
			shown[r.mutant] = true
		}
	}
	for m, words := range mutations {
		if m := mutation(m); m != unchanged && !shown[m] {
			t.Errorf("no run shows what is broken if %s", words)
		}
	}
}
