package history

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// Several processes tell, and what is wrong between them is found; one was killed as it told.
func TestGather(t *testing.T) {
	for _, p := range slices.Concat(permitPasts, fairPasts) {
		t.Run(p.name, func(t *testing.T) {
			want := p.past.r.CheckTimes(p.rules)
			var told [2]bytes.Buffer
			for i := range told {
				r := Recorder{tell: json.NewEncoder(&told[i])}
				for id, o := range p.past.r.ops {
					if o.client == i {
						o.id = id
						r.tellOp(o)
					}
				}
				for _, s := range p.past.r.steps {
					if s.op == nil || s.op.client == i {
						r.tellStep(s)
					}
				}
				io.WriteString(&told[i], `{"Op":{"ID":7`)
			}
			r, err := Gather(&told[0], &told[1])
			if err != nil {
				t.Fatal(err)
			}
			got := r.CheckTimes(p.rules)
			if (got == nil) != (want == nil) {
				t.Errorf("after it was told: %v; before: %v", got, want)
			}
		})
	}
}

func TestGatherNonsense(t *testing.T) {
	if _, err := Gather(strings.NewReader("what?\n")); err == nil {
		t.Error("nonsense was taken for a history")
	}
}

// Recorders of two processes have one clock.
func TestTellingClock(t *testing.T) {
	one := NewTelling(io.Discard)
	time.Sleep(time.Millisecond)
	other := NewTelling(io.Discard)
	first := one.started(&op{})
	second := other.started(&op{})
	third := one.started(&op{})
	if first.call > second.call || second.call > third.call {
		t.Errorf("one after the other: %v, %v, %v", first.call, second.call, third.call)
	}
}
