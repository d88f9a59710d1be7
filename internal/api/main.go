// Command api checks that the API of this repository only grows.
//
// Each exported function, type, method, field, variable and constant is a line in one of the files
// v*.txt. The name of the file is the version that added the line. If a line is no longer part of
// the API, that is an incompatible change. An interface that programs may implement is a single
// line, so adding a method to it is also incompatible. An incompatible change is an error unless
// removed.txt contains the old line.
//
//	go run ./internal/api                 # checks
//	go run ./internal/api -record v0.2.0  # writes the new lines to v0.2.0.txt
//
// The lines of a tagged version stay in its file. If v0.x makes an incompatible change anyway, the
// old line is added to removed.txt, below a comment with the version and the reason. CHANGELOG
// announces the change to users.
//
// The check ignores packages that programs can't or don't import: commands and examples, internal
// folders, bench, docs, and the modules of the tests. It covers contract and contract/faults. But
// later versions of contract may demand more of a store than earlier ones, since that is the
// purpose of the package.
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

// folder is the folder of the recorded files, relative to the root of the repository.
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

// write writes the file of a version. It contains the lines of the API that are in no other
// version's file. The version must not be tagged yet.
func write(root, version string, today map[string]bool) error {
	if tag, _ := exec.Command("git", "-C", root, "tag", "--list", version).Output(); len(tag) > 0 {
		return fmt.Errorf("%s is tagged: its file can't change", version)
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

// check compares the API with the recorded lines.
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
		return fmt.Errorf("this was in a version (-), or is in none so far (+: go run "+
			"./internal/api -record VERSION):\n%s", strings.Join(wrong, ""))
	}
	return nil
}

// recordedIn returns the lines of the files that match pattern, without comments.
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

// without returns the sorted lines that are in lines but not in others.
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
