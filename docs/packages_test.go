package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// width is how many columns of code a page of documentation shows beside its index, on a screen
// that is not small. Longer lines of declarations, and of comments in them, have to be scrolled.
const width = 120

// withoutOutput are the examples that are compiled, and not run: they need servers.
var withoutOutput = map[string]string{
	"contract.Example":                        "it is a test, which an example can't be",
	"contract.ExampleStore":                   "it is a test, which an example can't be",
	"etcdbackend.Example":                     "it needs an etcd: TestExamples runs it",
	"etcdbackend.ExampleWithPrefix":           "it needs an etcd: TestExamples runs it",
	"postgresbackend.Example":                 "it needs a server: TestExamples runs it",
	"postgresbackend.ExampleBackend_Guard":    "it needs a server: TestExamples runs it",
	"postgresbackend.ExampleBackend_GuardSQL": "it needs a server: TestExamples runs it",
	"postgresbackend.ExampleConnect":          "it needs a server: TestExamples runs it",
	"redisbackend.ExampleWithReplicas":        "it needs servers and sentinels",
	"redisbackend.ExampleWithShardedPubSub":   "it needs a cluster",
	"valkeybackend.ExampleWithReplicas":       "it needs servers and sentinels",
	"valkeybackend.ExampleWithShardedPubSub":  "it needs a cluster",
}

// A listing is a package's documentation.
type listing struct {
	*doc.Package
	fset    *token.FileSet
	written []*doc.Example // in files of tests, shown or not
}

// TestPackages looks at the documentation of all packages that others can import, and of all
// commands, in every module.
func TestPackages(t *testing.T) {
	t.Parallel()
	dirs := public(t)
	if len(dirs) < 15 {
		t.Fatalf("only %d packages were found", len(dirs))
	}
	library := &library{dirs: dirs, known: make(map[string]map[string]bool)}
	for importPath, dir := range dirs {
		t.Run(strings.TrimPrefix(importPath, repository+"/"), func(t *testing.T) {
			t.Parallel()
			p := list(t, dir, importPath, true)
			p.begins(t)
			p.shows(t)
			p.says(t)
			p.links(t, library, dir)
			p.fits(t)
		})
	}
}

const repository = "github.com/seed951563bd/distsync"

// public returns the folders of packages by their import paths.
func public(t *testing.T) map[string]string {
	t.Helper()
	dirs := make(map[string]string)
	err := filepath.WalkDir("..", func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		switch entry.Name() {
		case "internal", "testdata", "examples", "bench", "docs":
			return filepath.SkipDir // not to be imported, or for those who read the repository
		}
		if dir != ".." && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		var none *build.NoGoError
		switch p, err := build.ImportDir(dir, 0); {
		case errors.As(err, &none) || err == nil && len(p.GoFiles) == 0:
		case err != nil:
			return err
		default:
			relative, err := filepath.Rel("..", dir)
			if err != nil {
				return err
			}
			// modules are named after their folders
			dirs[path.Join(repository, filepath.ToSlash(relative))] = dir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// list returns the documentation of a package, and its examples if they are asked for.
func list(t *testing.T, dir, importPath string, examples bool) listing {
	t.Helper()
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	names := p.GoFiles
	if examples {
		names = slices.Concat(names, p.TestGoFiles, p.XTestGoFiles)
	}
	for _, name := range names {
		source, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") &&
			!bytes.Contains(source, []byte("\nfunc Example")) {
			continue
		}
		file, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	written := doc.Examples(files...)
	documentation, err := doc.NewFromFiles(fset, files, importPath)
	if err != nil {
		t.Fatal(err)
	}
	return listing{documentation, fset, written}
}

// begins checks that the first thing which one reads says what it is, and the next shows how to
// begin.
func (p listing) begins(t *testing.T) {
	t.Helper()
	want := "Package " + p.Name + " "
	if p.Name == "main" {
		want = "Command " + path.Base(p.ImportPath) + " "
	}
	if synopsis := p.Synopsis(p.Doc); !strings.HasPrefix(synopsis, want) {
		t.Errorf("the package comment begins with %q, not with %q", synopsis, want)
	}
	if listed := new(doc.Package).Synopsis(p.Doc); strings.Contains(listed, "[") {
		t.Errorf("lists of packages don't know the names in this one, and show their links as "+
			"they are written: %s", listed)
	}
	for _, block := range p.Parser().Parse(p.Doc).Content {
		switch block.(type) {
		case *comment.Code:
			return
		case *comment.Heading:
			t.Error("the overview shows no code before its first heading")
			return
		}
	}
	t.Error("the overview shows no code")
}

// shows checks that a package has an example of itself, and that examples run.
func (p listing) shows(t *testing.T) {
	t.Helper()
	if p.Name == "main" {
		return // pages of commands show none
	}
	if len(p.Examples) == 0 {
		t.Error("there is no Example of the package")
	}
	examples := slices.Clone(p.Examples)
	for _, f := range p.functions() {
		examples = append(examples, f.Examples...)
	}
	for _, typ := range p.Types {
		examples = append(examples, typ.Examples...)
	}
	for _, e := range p.written {
		if !slices.ContainsFunc(examples, func(shown *doc.Example) bool {
			return shown.Name == e.Name
		}) {
			t.Errorf("Example%s is on no page: it isn't called after a function, type or method",
				e.Name)
		}
	}
	excuses := maps.Clone(withoutOutput)
	for _, e := range examples {
		name := p.Name + ".Example" + e.Name
		reason := excuses[name]
		delete(excuses, name)
		if runs := e.Output != "" || e.EmptyOutput; runs == (reason != "") {
			t.Errorf("%s: has an output: %t; and a reason to have none: %q", name, runs, reason)
		}
	}
	for name := range excuses {
		if strings.HasPrefix(name, p.Name+".") {
			t.Errorf("%s has a reason to have no output, and isn't there", name)
		}
	}
}

// functions returns all functions and methods.
func (p listing) functions() []*doc.Func {
	functions := slices.Clone(p.Funcs)
	for _, typ := range p.Types {
		functions = slices.Concat(functions, typ.Funcs, typ.Methods)
	}
	return functions
}

// values returns all constants and variables, in groups.
func (p listing) values() []*doc.Value {
	values := slices.Concat(p.Consts, p.Vars)
	for _, typ := range p.Types {
		values = slices.Concat(values, typ.Consts, typ.Vars)
	}
	return values
}

// says checks that each name has a comment that begins with it, and that an option's comment names
// its default.
func (p listing) says(t *testing.T) {
	t.Helper()
	for _, f := range p.functions() {
		named(t, f.Name, f.Doc)
		if f.Recv == "" && returnsOption(f.Decl) && !fallback.MatchString(f.Doc) {
			t.Errorf("%s: nothing says what is so without this option", f.Name)
		}
	}
	for _, typ := range p.Types {
		named(t, typ.Name, typ.Doc)
	}
	for _, group := range p.values() {
		for _, spec := range group.Decl.Specs {
			spec := spec.(*ast.ValueSpec)
			switch {
			case len(group.Decl.Specs) == 1 && group.Doc != "":
				named(t, spec.Names[0].Name, group.Doc)
			case spec.Doc != nil:
				named(t, spec.Names[0].Name, spec.Doc.Text())
			case group.Doc == "":
				t.Errorf("%v: no comment", spec.Names)
			}
		}
	}
}

// fallback matches the part of a comment that names an option's default.
var fallback = regexp.MustCompile(`(?i)\b(default|without|unless)\b`)

// named checks a comment.
func named(t *testing.T, name, text string) {
	t.Helper()
	if !regexp.MustCompile(`^((A|An|The) )?` + name + `\b`).MatchString(text) {
		t.Errorf("%s: the comment doesn't begin with the name: %.60q", name, text)
	}
}

func returnsOption(decl *ast.FuncDecl) bool {
	if decl.Type.Results == nil {
		return false
	}
	return slices.ContainsFunc(decl.Type.Results.List, func(f *ast.Field) bool {
		name, ok := f.Type.(*ast.Ident)
		return ok && strings.HasSuffix(name.Name, "Option")
	})
}

// comments returns all comments that a page shows, by what they are about.
func (p listing) comments() map[string]string {
	texts := map[string]string{"the overview": p.Doc}
	for _, f := range p.functions() {
		texts[f.Recv+"."+f.Name] = f.Doc
		for _, e := range f.Examples {
			texts["Example"+e.Name] = e.Doc
		}
	}
	add := func(about, text string, decl ast.Decl) {
		texts[about] = text
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				texts[fmt.Sprint(about, ".", n.Names)] = n.Doc.Text() + n.Comment.Text()
			case *ast.ValueSpec:
				texts[fmt.Sprint(n.Names)] = n.Doc.Text() + n.Comment.Text()
			}
			return true
		})
	}
	for _, typ := range p.Types {
		add(typ.Name, typ.Doc, typ.Decl)
	}
	for _, group := range p.values() {
		add(fmt.Sprint(group.Names), group.Doc, group.Decl)
	}
	return texts
}

// brackets is what is left of a link to a name that wasn't found.
var brackets = regexp.MustCompile(`\[\*?(\w+\.)*[A-Z]\w*\]`)

// links checks that links in comments lead somewhere.
func (p listing) links(t *testing.T, library *library, dir string) {
	t.Helper()
	for about, text := range p.comments() {
		for _, part := range texts(p.Parser().Parse(text).Content) {
			switch part := part.(type) {
			case comment.Plain:
				if left := brackets.FindString(string(part)); left != "" {
					t.Errorf("%s: %s is no name that can be seen here", about, left)
				}
			case *comment.DocLink:
				name := strings.TrimPrefix(part.Recv+"."+part.Name, ".")
				if part.ImportPath != "" && name != "" &&
					!library.has(t, part.ImportPath, name, dir) {
					t.Errorf("%s: %s has no %s", about, part.ImportPath, name)
				}
			}
		}
	}
}

// texts returns what is written in paragraphs and lists.
func texts(blocks []comment.Block) (all []comment.Text) {
	for _, block := range blocks {
		switch block := block.(type) {
		case *comment.Paragraph:
			all = append(all, block.Text...)
		case *comment.List:
			for _, item := range block.Items {
				all = append(all, texts(item.Content)...)
			}
		}
	}
	return all
}

// A library knows the names in packages that are linked to.
type library struct {
	dirs map[string]string // of packages here

	mu    sync.Mutex
	known map[string]map[string]bool
}

// has says whether a package, as that in the folder from imports it, has a name, T.M for a method.
func (l *library) has(t *testing.T, importPath, name, from string) bool {
	t.Helper()
	dir := l.dirs[importPath]
	if dir == "" {
		absolute, err := filepath.Abs(from)
		if err != nil {
			t.Fatal(err)
		}
		here := build.Default
		here.Dir = absolute // the module that it is in says which version
		found, err := here.Import(importPath, absolute, build.FindOnly)
		if err != nil {
			t.Errorf("%s: %v", importPath, err)
			return true
		}
		dir = found.Dir
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[dir] == nil {
		l.known[dir] = names(list(t, dir, importPath, false))
	}
	return l.known[dir][name]
}

// names returns what one can link to.
func names(p listing) map[string]bool {
	all := make(map[string]bool)
	for _, f := range p.functions() {
		all[strings.TrimPrefix(strings.TrimPrefix(f.Recv, "*")+"."+f.Name, ".")] = true
	}
	for _, group := range p.values() {
		for _, name := range group.Names {
			all[name] = true
		}
	}
	for _, typ := range p.Types {
		all[typ.Name] = true
		ast.Inspect(typ.Decl, func(n ast.Node) bool {
			if methods, ok := n.(*ast.InterfaceType); ok {
				for _, m := range methods.Methods.List {
					for _, name := range m.Names {
						all[typ.Name+"."+name.Name] = true
					}
				}
			}
			return true
		})
	}
	return all
}

// fits checks that what is shown as code can be read without scrolling.
func (p listing) fits(t *testing.T) {
	t.Helper()
	for about, text := range p.comments() {
		for _, block := range p.Parser().Parse(text).Content {
			if code, ok := block.(*comment.Code); ok {
				narrow(t, about, code.Text)
			}
		}
	}
	decls := make(map[string]*ast.GenDecl)
	for _, typ := range p.Types {
		decls[typ.Name] = typ.Decl
	}
	for _, group := range p.values() {
		decls[fmt.Sprint(group.Names)] = group.Decl
	}
	for _, about := range slices.Sorted(maps.Keys(decls)) {
		decl := *decls[about]
		decl.Doc = nil
		var shown bytes.Buffer
		if err := format.Node(&shown, p.fset, &decl); err != nil {
			t.Fatal(err)
		}
		narrow(t, about, shown.String())
	}
}

func narrow(t *testing.T, about, code string) {
	t.Helper()
	for line := range strings.Lines(code) {
		if n := len([]rune(strings.ReplaceAll(line, "\t", "    "))) - 1; n > width {
			t.Errorf("%s: %d columns: %s", about, n, line)
		}
	}
}
