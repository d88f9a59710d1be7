// Command api checks that what programs may use of this repository only grows.
//
// Every exported function, type, method, field, variable and constant is a line in one of the files v*.txt, which is named after the
// version that brought it. A line that is none of today's API any more is an incompatible change, and so is a method more in an
// interface that programs may implement: the interface is one line. It's an error unless removed.txt has the line too.
//
//	go run ./internal/api                 # checks
//	go run ./internal/api -record v0.2.0  # writes what no earlier version has to v0.2.0.txt
//
// What a version has once it's tagged stays in its file. Where v0.x breaks something all the same, the line goes to removed.txt,
// below a comment with the version that does so and why; CHANGELOG tells users.
//
// Not held to this are commands and examples, whose packages can't be imported; everything below an internal folder; and bench,
// docs and the tests' own modules, which nobody imports. contract and contract/faults are held to it, though a later contract may
// ask more of a store than an earlier: for that it is there.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	record := flag.String("record", "", "the `version` whose file is written anew")
	flag.Parse()
	if err := run(".", *record); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// folder is where the files are, in the repository.
const folder = "internal/api"

func run(root, record string) error {
	today, err := current(root)
	if err != nil {
		return err
	}
	if record != "" {
		err = write(root, record, today)
	}
	if err != nil {
		return err
	}
	return check(root, today)
}

// write writes what no other version has to the file of one that isn't tagged.
func write(root, version string, today map[string]bool) error {
	if tag, _ := exec.Command("git", "-C", root, "tag", "--list", version).Output(); len(tag) > 0 {
		return fmt.Errorf("%s is tagged: what it has stays as it is", version)
	}
	file := filepath.Join(root, folder, version+".txt")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		return err
	}
	recorded, err := recordedIn(root, "v*.txt")
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.Join(without(today, recorded), "")), 0o666)
}

// check compares today's API with what is recorded.
func check(root string, today map[string]bool) error {
	recorded, err := recordedIn(root, "v*.txt")
	if err != nil {
		return err
	}
	removed, err := recordedIn(root, "removed.txt")
	if err != nil {
		return err
	}
	var wrong []string
	for _, line := range without(recorded, today) {
		if !removed[line] {
			wrong = append(wrong, "- "+line)
		}
	}
	for _, line := range without(today, recorded) {
		wrong = append(wrong, "+ "+line)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("this was in a version (-), or is in none so far (+: go run ./internal/api -record VERSION):\n%s", strings.Join(wrong, ""))
	}
	return nil
}

// recordedIn returns the lines of files, without comments.
func recordedIn(root, pattern string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(root, folder, pattern))
	if err != nil {
		return nil, err
	}
	lines := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") {
				lines[line] = true
			}
		}
	}
	return lines, nil
}

// without returns the lines that only the first has, in order.
func without(lines, others map[string]bool) []string {
	var only []string
	for line := range lines {
		if !others[line] {
			only = append(only, line)
		}
	}
	slices.Sort(only)
	return only
}
