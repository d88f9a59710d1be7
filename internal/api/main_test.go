package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const before = `package store

type Session interface {
	Acquire(name string) error
}

type sealed interface{ Name() string }

type Kind interface {
	sealed
	unexported()
}

type Request struct {
	Name string
	then []string
}

type Result struct{ Count int }

func (Result) String() string { return "" }

type Option func(*Request)

const Plain = 1

var Fails error

func New(name string, opts ...Option) *Request { return nil }

func (r *Request) Close(then func(err error)) error { return nil }
`

// repository creates a repository whose version v0.1.0 has the package above.
func repository(t *testing.T) (root string, put func(source string)) {
	t.Helper()
	root = t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	put = func(source string) { write("adapters/x/store.go", source) }
	write("adapters/x/go.mod", "module example.com/store\n\ngo 1.26.0\n")
	write("adapters/x/internal/hidden/hidden.go", "package hidden\n\nfunc Hidden() {}\n")
	write("internal/api/v0.0.1.txt", "# nothing\n")
	put(before)
	if err := run(root, "v0.1.0"); err != nil {
		t.Fatal(err)
	}
	return root, put
}

func TestWhatIsFound(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct{ old, new, found string }{
		"a function less": {
			"func New(name string, opts ...Option) *Request { return nil }", "",
			"- pkg example.com/store, func New(string, ...Option) *Request\n",
		},
		"another signature": {
			"name string, opts", "opts",
			"- pkg example.com/store, func New(string, ...Option) *Request\n",
		},
		"a parameter more": {
			"(name string) error", "(name string, opts ...Option) error",
			"- pkg example.com/store, type Session interface { Acquire(string) error }\n",
		},
		"a method more for who implements": {
			"type Session interface {", "type Session interface {\n\tRelease()",
			"- pkg example.com/store, type Session interface { Acquire(string) error }\n",
		},
		"nobody else may implement it now": {
			"type Session interface {", "type Session interface {\n\trelease()",
			"- pkg example.com/store, type Session interface { Acquire(string) error }\n",
		},
		"a method less for who calls": {
			"Name() string", "", "- pkg example.com/store, type Kind interface, Name() string\n",
		},
		"a field of another type": {
			"Name string", "Name []byte",
			"- pkg example.com/store, type Request struct, Name string\n",
		},
		"a struct that can't be compared": {
			"Count int", "Count int; all []int",
			"- pkg example.com/store, type Result struct (comparable)\n",
		},
		"a method that values have no more": {
			"(Result) String", "(*Result) String",
			"- pkg example.com/store, method (Result) String() string\n",
		},
		"a constant of another value": {
			"Plain = 1", "Plain = 2", "- pkg example.com/store, const Plain untyped int = 1\n",
		},
		"a variable of another type": {
			"Fails error", "Fails any", "- pkg example.com/store, var Fails error\n",
		},
		"a function in a parameter": {
			"func(err error)", "func()",
			"- pkg example.com/store, method (*Request) Close(func(error)) error\n",
		},
		"what is new and in no version": {
			"const Plain = 1", "const Plain = 1\n\nconst Fair = 2",
			"+ pkg example.com/store, const Fair untyped int = 2\n",
		},
		"a method more that only we have": {
			"\tunexported()", "\tunexported()\n\tMore()",
			"+ pkg example.com/store, type Kind interface, More()\n",
		},
		"another name of a parameter": {
			"Close(then func(err error))", "Close(f func(error))", "",
		},
		"an unexported thing, and a comment": {"then []string", "next []string // changed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, put := repository(t)
			after := strings.ReplaceAll(before, change.old, change.new)
			if after == before {
				t.Fatalf("there is no %q", change.old)
			}
			put(after)
			err := run(root, "")
			switch {
			case change.found == "" && err != nil:
				t.Errorf("a change that breaks nothing: %v", err)
			case change.found != "" && (err == nil || !strings.Contains(err.Error(), change.found)):
				t.Errorf("says %v, want %q in it", err, change.found)
			case strings.HasPrefix(change.found, "+") && strings.Contains(err.Error(), "\n- "):
				t.Errorf("what only adds is said to break: %v", err)
			}
		})
	}
}

// An incompatible change removes a name, and a later version adds another.
func TestVersions(t *testing.T) {
	t.Parallel()
	root, put := repository(t)
	put(strings.ReplaceAll(before, "const Plain = 1", "const Fair = 2"))
	if err := run(root, "v0.2.0"); err == nil {
		t.Error("recording a version hides what was removed")
	}
	const line = "pkg example.com/store, const Plain untyped int = 1\n"
	if err := os.WriteFile(filepath.Join(root, folder, "removed.txt"),
		[]byte("# v0.2.0: fair is better\n"+line), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := run(root, ""); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(root, folder, "v0.2.0.txt"))
	if want := "pkg example.com/store, const Fair untyped int = 2\n"; err != nil ||
		string(text) != want {
		t.Errorf("v0.2.0 adds %q, %v; want %q", text, err, want)
	}
}
