package porting

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	code  = regexp.MustCompile("(?s)```.*?```")
	spans = regexp.MustCompile("`[^`]+`")
	words = regexp.MustCompile(`\w+`)
)

// accounted says which names, each the last word of what is given, a section of docs/porting.md
// doesn't mention, in its tables or its text.
func accounted(t *testing.T, section string, names []string) {
	t.Helper()
	// a link, since the go command caches results though files outside of the module have changed
	text, err := os.ReadFile("testdata/porting.md")
	must(t, err)
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var said []string
	for _, span := range spans.FindAllString(code.ReplaceAllString(rest, ""), -1) {
		said = append(said, words.FindAllString(span, -1)...)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if last := name[strings.LastIndexAny(name, " .")+1:]; !slices.Contains(said, last) {
			t.Errorf("not in the section on %s: %s", section, name)
		}
	}
}

// All exported names of the other packages are in the tables.
func TestNothingIsForgotten(t *testing.T) {
	t.Parallel()
	for section, path := range map[string]string{
		"redsync":            "github.com/go-redsync/redsync/v4",
		"redislock":          "github.com/bsm/redislock",
		"etcd's concurrency": "go.etcd.io/etcd/client/v3/concurrency",
	} {
		names := exported(t, path)
		if len(names) < 20 {
			t.Errorf("%s exports %v", path, names)
		}
		accounted(t, section, names)
	}
	accounted(t, "valkeylock",
		strings.Fields(
			`NewLocker LockerOption Locker WithContext TryWithContext ForceWithContext Client Close
			ErrNotLocked ErrLockerClosed ClientBuilder KeyPrefix ClientOption KeyValidity
			ExtendInterval TryNextAfter KeyMajority NoLoopTracking FallbackSETPX`))
}

// exported returns what a package exports, with methods and fields, but for those that make a type
// an error.
func exported(t *testing.T, path string) (names []string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", path).Output()
	must(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	must(t, err)
	add := func(of string, idents ...*ast.Ident) {
		for _, id := range idents {
			if id.IsExported() && id.Name != "Error" && id.Name != "Unwrap" {
				names = append(names, of+id.Name)
			}
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		must(t, err)
		for _, decl := range parsed.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if of := receiver(decl); of == "" || ast.IsExported(of) {
					add(of+".", decl.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						add("", spec.Names...)
					case *ast.TypeSpec:
						add("", spec.Name)
						if !spec.Name.IsExported() {
							continue
						}
						ast.Inspect(spec.Type, func(n ast.Node) bool {
							// fields, and methods of interfaces
							if f, ok := n.(*ast.Field); ok {
								add(spec.Name.Name+".", f.Names...)
							}
							return true
						})
					}
				}
			}
		}
	}
	return names
}

// receiver returns the name of a method's type, or nothing.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	return of.(*ast.Ident).Name
}
