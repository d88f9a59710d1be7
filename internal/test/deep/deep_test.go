package deep

import "testing"

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
