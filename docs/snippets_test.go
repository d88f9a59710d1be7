package docs_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// snippets names, for each document with Go or Java code, the files with the same code, which tests
// compile and run. Whole programs are in the document only: they are run here.
var snippets = map[string][]string{
	"../README.md":           {"readme_test.go"},
	"../adapters/README.md":  {"../adapters/*/example_test.go"},
	"../dlocktest/README.md": {"../dlocktest/example_test.go"},
	"../oteldlock/README.md": {"../oteldlock/*_test.go"},
	"before-production.md":   {"before_production_test.go"},
	"fencing.md":             {"fencing_test.go"},
	"kubernetes.md":          {"kubernetes_test.go"},
	"guide.md":               {"guide_test.go", "../dlocktest/guarantees_test.go"},
	"porting.md":             {"porting/*.go", "porting/*.java"},
	"recipes.md":             {"recipes/*.go"},
	"stores.md":              {"../examples/newbackend/*.go", "../examples/sqlite/*.go"},
}

var (
	codeBlock   = regexp.MustCompile("(?ms)^```(go|java)\n(.*?)^```$")
	inlineCode  = regexp.MustCompile("`([^`\n]* := [^`\n]*)`")
	indentation = regexp.MustCompile(`^[ \t]*`)
)

// Newcomers copy code from the documents: all of it compiles and runs as it is printed.
func TestSnippets(t *testing.T) {
	documents := slices.Sorted(maps.Keys(snippets))
	for _, document := range documents {
		t.Run(document, func(t *testing.T) {
			t.Parallel()
			text := contentOf(t, document)
			sources := dedentedSources(t, snippets[document])
			for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
				if strings.HasPrefix(block[2], "package main\n") {
					runProgram(t, block[2])
				} else if !sources.have(block[2]) {
					t.Errorf("stands nowhere in %v:\n%s", snippets[document], block[2])
				}
			}
			for _, code := range inlineCode.FindAllStringSubmatch(
				codeBlock.ReplaceAllString(text, ""), -1) {
				if !sources.have(code[1] + "\n") {
					t.Errorf("is no line of %v: %s", snippets[document], code[1])
				}
			}
		})
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" && d.Type().IsRegular() &&
			!slices.Contains(documents, filepath.ToSlash(relative(path))) &&
			codeBlock.MatchString(contentOf(t, path)) {
			t.Errorf("%s has code, of which nothing says where it is tested", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// relative returns a path that was found from the parent of this folder as it is from here.
func relative(path string) string {
	if rest, here := strings.CutPrefix(path,
		filepath.Join("..", "docs")+string(filepath.Separator)); here {
		return rest
	}
	return path
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sourceLines are the lines of some files.
type sourceLines [][]string

// dedentedSources reads the files that match the patterns.
func dedentedSources(t *testing.T, patterns []string) (sources sourceLines) {
	t.Helper()
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			sources = append(sources, strings.SplitAfter(contentOf(t, path), "\n"))
		}
	}
	if len(sources) == 0 {
		t.Fatalf("no file is %v", patterns)
	}
	return sources
}

// have says whether consecutive lines of the sources are the code, apart from indentation.
func (s sourceLines) have(code string) bool {
	code = dedent(strings.SplitAfter(code, "\n"))
	n := strings.Count(code, "\n")
	for _, lines := range s {
		for from := range max(len(lines)-n, 0) {
			if dedent(lines[from:from+n]) == code {
				return true
			}
		}
	}
	return false
}

// dedent joins lines without the indentation that all of them have.
func dedent(lines []string) string {
	indent, first := "", true
	for _, line := range lines {
		switch blanks := indentation.FindString(line); {
		case strings.TrimSpace(line) == "":
		case first:
			indent, first = blanks, false
		case !strings.HasPrefix(blanks, indent):
			indent = blanks // which the rest of the lines begin with, too, or nothing fits
		}
	}
	var joined strings.Builder
	for _, line := range lines {
		joined.WriteString(strings.TrimPrefix(line, indent))
	}
	return joined.String()
}

// runProgram runs a program like a reader who has copied it, with only Go.
func runProgram(t *testing.T, program string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file)
	cmd.Dir = ".."
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil || said.Len() == 0 {
		t.Errorf("%v, and said %q:\n%s", err, fmt.Sprint(&said), program)
	}
}
