package dlock

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files call each other in one direction: each calls only functions of files before it in the table
// of docs/architecture.md. So a reader can take the files one after the other.
func TestFilesCallInOneDirection(t *testing.T) {
	page, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| about | files |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	place := make(map[string]int)
	for row := range strings.Lines(table) {
		for _, file := range strings.Split(strings.Split(row, "|")[2], ",") {
			place[strings.TrimSpace(file)+".go"] = len(place) + 1
		}
	}
	calls := callsOfFiles(t)
	if len(place) != len(calls) {
		t.Errorf("%d files are in the table, and there are %d", len(place), len(calls))
	}
	for file, callees := range calls {
		if place[file] == 0 {
			t.Errorf("%s isn't in the table", file)
		}
		for callee, function := range callees {
			if place[callee] > place[file] {
				t.Errorf("%s calls %s, which is in %s, after it", file, function, callee)
			}
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
