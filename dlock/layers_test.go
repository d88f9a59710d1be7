package dlock

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Files call each other in one direction: there is an order in which each file calls only functions
// of files before it. So a reader can take the files one after the other.
func TestFilesCallInOneDirection(t *testing.T) {
	calls := callsOfFiles(t)
	for before := 0; before != len(calls); {
		before = len(calls) // a file that calls no other, or isn't called, is in no circle
		called := make(map[string]bool)
		for file, callees := range calls {
			maps.DeleteFunc(callees, func(callee, _ string) bool { return calls[callee] == nil })
			if len(callees) == 0 {
				delete(calls, file)
			}
			for callee := range callees {
				called[callee] = true
			}
		}
		maps.DeleteFunc(calls, func(file string, _ map[string]string) bool { return !called[file] })
	}
	for _, file := range slices.Sorted(maps.Keys(calls)) {
		for callee, function := range calls[file] {
			t.Errorf("in a circle: %s calls %s, of %s", file, function, callee)
		}
	}
}

// callsOfFiles returns, for each file of this package, the files whose functions it calls, with one
// function of each.
func callsOfFiles(t *testing.T) map[string]map[string]string {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	all := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(all, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: importer.ForCompiler(all, "source", nil)}
	pkg, err := config.Check("dlock", all, files, &info)
	if err != nil {
		t.Fatal(err)
	}
	calls := make(map[string]map[string]string)
	for _, file := range files {
		calls[all.File(file.Pos()).Name()] = make(map[string]string)
	}
	for ident, used := range info.Uses {
		function, ok := used.(*types.Func)
		if !ok || function.Pkg() != pkg {
			continue
		}
		from, to := all.File(ident.Pos()).Name(), all.File(function.Pos()).Name()
		if from != to {
			calls[from][to] = function.Name()
		}
	}
	return calls
}
