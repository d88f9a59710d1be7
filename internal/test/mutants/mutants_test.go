package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The old lines of each mutant occur exactly once in its file. A changed Go file still parses.
func TestMutantsApply(t *testing.T) {
	all, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, m := range all {
		name := m.file + ": " + m.words
		if seen[name] {
			t.Errorf("%s: there are two of that name", name)
		}
		seen[name] = true
		text, err := os.ReadFile(filepath.Join("../../..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		changed, err := m.apply(string(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.HasSuffix(m.file, ".go") {
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, changed, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(all) == 0 {
		t.Error("there are none")
	}
}

func TestParse(t *testing.T) {
	const twoMutants = `
# words
a/b.go: first
-	if x {
-		y()
+	if true {

a/c.go: second
-	z()
`
	all, err := parse(twoMutants)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if want := (mutant{"a/b.go", "first", "\tif x {\n\t\ty()\n", "\tif true {\n"}); all[0] != want {
		t.Errorf("%q, want %q", all[0], want)
	}
	if all[1].new != "" {
		t.Errorf("%q", all[1])
	}
	for _, bad := range []string{"no words", "-before: the first", "a: b\n-x\n+y\n-z: after"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, err := all[1].apply("\tz()\n\tz()\n"); err == nil {
		t.Error("a line that is there twice is changed")
	}
}
