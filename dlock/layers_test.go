package dlock

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
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

// A function that is given the state runs with the mutex locked, so it does no I/O and doesn't
// wait. What it only arranges for, in function literals, may.
func TestRulesDoNotWait(t *testing.T) {
	all, files, info := parsed(t)
	rules, waiting := 0, []string{"context", "os", "sync"}
	for _, file := range files {
		for _, decl := range file.Decls {
			rule, ok := decl.(*ast.FuncDecl)
			if !ok || !isGiven(info.Defs[rule.Name].Type(), "*dlock.state") {
				continue
			}
			rules++
			ast.Inspect(rule.Body, func(n ast.Node) bool {
				what := ""
				switch n := n.(type) {
				case *ast.FuncLit:
					return false
				case *ast.GoStmt:
					what = "starts a goroutine"
				case *ast.UnaryExpr:
					if n.Op == token.ARROW {
						what = "receives from a channel"
					}
				case *ast.Ident:
					function, ok := info.Uses[n].(*types.Func)
					if ok && (isGiven(function.Type(), "*dlock.Client") ||
						isGiven(function.Type(), "context.Context") ||
						function.Pkg() != nil && slices.Contains(waiting, function.Pkg().Path())) {
						what = "calls " + function.FullName()
					}
				}
				if what != "" {
					t.Errorf("%v: %s %s", all.Position(n.Pos()), rule.Name.Name, what)
				}
				return true
			})
		}
	}
	if rules < 100 {
		t.Errorf("%d rules found", rules)
	}
}

// isGiven reports whether a function has a receiver or a parameter of the given type.
func isGiven(function types.Type, name string) bool {
	signature := function.(*types.Signature)
	vars := slices.Collect(signature.Params().Variables())
	if receiver := signature.Recv(); receiver != nil {
		vars = append(vars, receiver)
	}
	return slices.ContainsFunc(vars, func(v *types.Var) bool { return v.Type().String() == name })
}

// callsOfFiles returns, for each file of this package, the files whose functions it calls, with one
// function of each.
func callsOfFiles(t *testing.T) map[string]map[string]string {
	all, files, info := parsed(t)
	calls := make(map[string]map[string]string)
	for _, file := range files {
		calls[all.File(file.Pos()).Name()] = make(map[string]string)
	}
	for ident, used := range info.Uses {
		function, ok := used.(*types.Func)
		if !ok || function.Pkg() == nil || function.Pkg().Path() != "dlock" {
			continue
		}
		from, to := all.File(ident.Pos()).Name(), all.File(function.Pos()).Name()
		if from != to {
			calls[from][to] = function.Name()
		}
	}
	return calls
}

// parsed returns the files of this package, without its tests, and what the names in them mean.
func parsed(t *testing.T) (*token.FileSet, []*ast.File, *types.Info) {
	t.Helper()
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
	info := &types.Info{
		Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object),
	}
	config := types.Config{Importer: importer.ForCompiler(all, "source", nil)}
	if _, err := config.Check("dlock", all, files, info); err != nil {
		t.Fatal(err)
	}
	return all, files, info
}
