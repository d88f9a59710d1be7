package goroutine

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestCallerIsTheInnermostOfAnothers(t *testing.T) {
	got := make(chan string, 2)
	inner := func() { got <- Caller() }
	inner()
	new(sync.Once).Do(inner) // its frames are outside, but not the innermost
	for range 2 {
		if file, line, _ := strings.Cut(filepath.Base(<-got), ":"); file != "caller_test.go" ||
			line != "12" {
			t.Errorf("called from %s, line %s", file, line)
		}
	}
}
