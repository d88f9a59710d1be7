package protocol

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The package has no clock, goroutine, lock or I/O: it imports nothing that would allow it, and of
// package time it takes names for durations only.
func TestImports(t *testing.T) {
	allowed := []string{"github.com/seed951563bd/distsync/backend", "math", "sync/atomic", "time"}
	ofTime := []string{"Duration", "Millisecond", "Second", "Minute"}
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	files := token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil || spec.Name != nil || !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt, *ast.ChanType:
				t.Errorf("%v: goroutines and channels are not for this package",
					files.Position(n.Pos()))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && x.Name == "time" && !slices.Contains(ofTime, n.Sel.Name) {
					t.Errorf("%v: time.%s is not for this package", files.Position(n.Pos()),
						n.Sel.Name)
				}
			}
			return true
		})
	}
}
