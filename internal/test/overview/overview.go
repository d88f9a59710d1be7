// Package overview tests the example program in a package's overview, which users copy.
package overview

import (
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Compiles fails the test unless the overview in the folder's doc.go contains a program that passes
// go vet.
func Compiles(t *testing.T) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	program := first(file.Doc.Text())
	if formatted, err := format.Source([]byte(program)); err != nil ||
		string(formatted) != program {
		t.Fatalf("the program in doc.go isn't formatted: %v\n%s", err, formatted)
	}
	path := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("go", "vet", path).CombinedOutput(); err != nil {
		t.Errorf("the program in doc.go: %v\n%s", err, output)
	}
}

// first returns the first code block that is a program.
func first(text string) string {
	for _, block := range new(comment.Parser).Parse(text).Content {
		if code, ok := block.(*comment.Code); ok && strings.HasPrefix(code.Text, "package main\n") {
			return code.Text
		}
	}
	return ""
}
