// Package docs_test runs the commands of docs/operations.md and docs/operations-store.md.
package docs_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

var update = flag.Bool("update", false, "write what commands answer into the pages of operations")

const document = "operations.md"

// documents are the pages with commands.
var documents = []string{"operations-store.md", document}

// stores are the stores that the pages are run on. Where they treat several alike, their text is as
// the first of them writes it.
var stores = []struct {
	name   string
	page   string // what the pages call them
	writes bool
	start  func(t *testing.T) place
	scenes map[string]scene
}{
	{"redis", "redis", true, onRedis, redisScenes},
	{"valkey", "redis", false, onValkey, redisScenes},
	{"etcd", "etcd", true, onEtcd, etcdScenes},
	{"postgres", "postgres", true, onPostgres, postgresScenes},
}

func TestMain(m *testing.M) {
	apart.SideBySide(6)
	wiretest.VerifyTestMain(m)
}

// A console is a block of commands with their output. The mark before it names the store and how
// that was set up.
type console struct{ document, store, scene, text string }

var (
	consoles = regexp.MustCompile("(?s)(<!-- run: (\\w+): ([^>]*) -->\n```console\n)(.*?)```\n")
	fences   = regexp.MustCompile("(?m)^```(console|sh|shell|bash)\n")
)

// TestOperations runs all commands of the pages on servers, and compares what they answer with what
// the pages say.
func TestOperations(t *testing.T) {
	var all []console
	for _, name := range documents {
		text := contentOf(t, name)
		before := len(all)
		for _, match := range consoles.FindAllStringSubmatch(text, -1) {
			all = append(all, console{name, match[2], match[3], match[4]})
		}
		if n, said := len(fences.FindAllString(text, -1)), len(all)-before; n != said {
			t.Errorf("%s: of %d blocks of commands %d say what they are run on", name, n, said)
		}
	}
	got := slices.Clone(all) // as the servers answer
	t.Run("on", func(t *testing.T) {
		for _, st := range stores {
			t.Run(st.name, func(t *testing.T) {
				t.Parallel()
				p := st.start(t)
				seen := make(map[string]bool)
				for i, c := range all {
					if c.store != st.page {
						continue
					}
					scene, ok := st.scenes[c.scene]
					if !ok {
						t.Errorf("no scene is called %q", c.scene)
						continue
					}
					seen[c.scene] = true
					t.Run(c.scene, func(t *testing.T) {
						answer := p.play(t, scene, c.text)
						if same(answer, c.text) {
							return
						}
						if !*update {
							t.Errorf("%s says\n%s\nwhere it is\n%s", c.document, c.text, answer)
						} else if st.writes && !t.Failed() {
							got[i].text = answer
						}
					})
				}
				for name := range st.scenes {
					if !seen[name] {
						t.Errorf("no page has anything of %q", name)
					}
				}
			})
		}
	})
	if !*update || slices.Equal(got, all) {
		return
	}
	i := 0
	for _, name := range documents {
		text := consoles.ReplaceAllStringFunc(contentOf(t, name), func(old string) string {
			i++
			return consoles.FindStringSubmatch(old)[1] + got[i-1].text + "```\n"
		})
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAlarms compares the alarms of the page with the rules for Prometheus, whose own test looks at
// them closer: they have the same names, and ask for the same metrics.
func TestAlarms(t *testing.T) {
	page, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("../oteldlock/examples/monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Alarms worth having")
	table, _, _ = strings.Cut(table, "\n### ")
	var explained, ruled []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").
		FindAllStringSubmatch(table, -1) {
		explained = append(explained, "Distsync"+row[1])
	}
	for _, rule := range regexp.MustCompile(`(?m)- alert: (\w+)$`).
		FindAllStringSubmatch(string(rules), -1) {
		ruled = append(ruled, rule[1])
	}
	slices.Sort(explained)
	slices.Sort(ruled)
	if len(ruled) < 10 || !slices.Equal(explained, ruled) {
		t.Errorf("the page explains the alarms %q, the rules are %q", explained, ruled)
	}
	metric := regexp.MustCompile(`\bdistsync_\w+\b`)
	label := regexp.MustCompile(`^distsync_(kind|name|outcome|via|reason|step|set)$`)
	metrics := func(text string) []string {
		all := slices.DeleteFunc(metric.FindAllString(text, -1), label.MatchString)
		slices.Sort(all)
		return slices.Compact(all)
	}
	if got, want := metrics(table), metrics(string(rules)); len(got) < 10 ||
		!slices.Equal(got, want) {
		t.Errorf("the page has alarms of %q, the rules of %q", got, want)
	}
}

// TestRecords compares the records of the log that the page explains with those that package dlock
// writes.
func TestRecords(t *testing.T) {
	page, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "### What the log says")
	written := records(t)
	explained := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\| `").
		FindAllStringSubmatch(table, -1) {
		for _, record := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(row[1], -1) {
			explained[record[1]] = true
			if !written[record[1]] {
				t.Errorf("package dlock never logs %q", record[1])
			}
		}
	}
	for record := range written {
		if !explained[record] {
			t.Errorf("the page doesn't explain %q", record)
		}
	}
}

// records returns the records that package dlock logs, except those of level debug.
func records(t *testing.T) map[string]bool {
	t.Helper()
	logs := regexp.MustCompile(
		`(?:\bwarn|\bwarnLocked|\bwarning|\brecord)[({]` +
			`(?:time\.Now\(\), \w+, |what\+)?"(?:: )?([^"]+)"`)
	all := make(map[string]bool)
	for _, match := range logs.FindAllStringSubmatch(sources(t, "../dlock"), -1) {
		all[match[1]] = true
	}
	return all
}

// TestMetrics compares the metrics and labels of the page's alarms with those of package oteldlock,
// which Prometheus calls otherwise.
func TestMetrics(t *testing.T) {
	page, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	source := sources(t, "../oteldlock")
	_, alarms, _ := strings.Cut(string(page), "## Alarms worth having")
	names := regexp.MustCompile(`\bdistsync_[a-z_]+`).FindAllString(alarms, -1)
	if len(names) == 0 {
		t.Error("the page has no metrics")
	}
	for _, name := range names {
		metric := strings.TrimSuffix(
			strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_seconds"), "_total")
		if !strings.Contains(source, `"`+strings.ReplaceAll(metric, "_", ".")+`"`) {
			t.Errorf("package oteldlock has no %s", name)
		}
	}
}

// sources returns the text of a package without its tests.
func sources(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// run runs the commands of a block in one shell, and returns the block with what they answer.
func run(t *testing.T, dir string, env []string, block string) string {
	t.Helper()
	var script strings.Builder
	for _, command := range commands(block) {
		fmt.Fprintf(&script, "printf '%%s\\n' %s\n%s\n", quote("$ "+command), command)
	}
	// The output is a file, and not a pipe, so that the command lines of Redis know what comes to
	// the reader's eyes.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script.String())
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = dir
	failed := cmd.Run()
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if failed != nil {
		t.Errorf("%v\n%s", failed, text)
	}
	return string(text)
}

// commands returns what a block says to type. A line that ends in a backslash goes on in the next
// one.
func commands(block string) (all []string) {
	goesOn := false
	for line := range strings.Lines(block) {
		line = strings.TrimSuffix(line, "\n")
		command, ok := strings.CutPrefix(line, "$ ")
		switch {
		case goesOn:
			all[len(all)-1] += "\n" + line
		case ok:
			all = append(all, command)
		default:
			continue
		}
		goesOn = strings.HasSuffix(line, `\`)
	}
	return all
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// These vary from run to run: ids of permits, which are bytes; other ids; etcd's revisions; the
// microseconds of TIME, which may be a short number; and numbers of four digits or more.
var varying = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`"(?:[^"\\\n]|\\.)*\\x(?:[^"\\\n]|\\.)*"`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{12,}\b`), "ID"},
	{regexp.MustCompile(`(?i)(revision("? :)? |"said":)\d+`), "REVISION"},
	{regexp.MustCompile(`(?m)^( *\d\) "\d{10}"\n *\d\) )"\d+"$`), `${1}"N"`},
	{regexp.MustCompile(`\d{4,}`), "N"},
}

// TestShortMicroseconds: the answer to TIME may have any number of digits.
func TestShortMicroseconds(t *testing.T) {
	const page = "$ redis-cli TIME\n1) \"1795347924\"\n2) \"725832\"\n"
	if !same(page, strings.Replace(page, "725832", "975", 1)) {
		t.Error("975 µs are taken for another answer than 725832 µs")
	}
	if same(page, strings.Replace(page, `"725832"`, "(nil)", 1)) {
		t.Error("(nil) is taken for 725832 µs")
	}
}

func same(a, b string) bool { return blurred(a) == blurred(b) }

func blurred(s string) string {
	for _, v := range varying {
		s = v.what.ReplaceAllString(s, v.as)
	}
	return s
}

// programs makes a folder with programs of these names, and returns the PATH that has them first.
func programs(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	return "PATH=" + dir + string(filepath.ListSeparator) + os.Getenv("PATH")
}
