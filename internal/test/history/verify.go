package history

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/anishathalye/porcupine"
)

// SeedVar is the environment variable that sets the seed of all workloads. Setting it to the seed
// of a failed run repeats the users' choices but not their schedule, so it may take several runs to
// reproduce the failure.
const SeedVar = "DISTSYNC_HISTORY_SEED"

// Seed returns the seed from the environment, or a new one.
func Seed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv(SeedVar)
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", SeedVar, err)
	}
	return seed
}

// Verify checks the record. If the record is wrong, it fails the test and reports how to repeat the
// run and where it wrote the history. Don't call it in a synctest bubble.
func (r *Recorder) Verify(t testing.TB, seed uint64, rules Rules) {
	t.Helper()
	v := r.Check(rules)
	if v.Err == nil {
		return
	}
	t.Errorf("%v\nto repeat it: %s=%d go test -run '^%s$' -count=10", v.Err, SeedVar, seed,
		t.Name())
	dir := artifacts(t)
	if err := r.write(dir, v); err != nil {
		t.Errorf("the history cannot be written: %v", err)
		return
	}
	t.Logf("the history is in %s: history.html is for a browser, history.txt has the steps in "+
		"the store, too", dir)
}

// write writes the history into a folder.
func (r *Recorder) write(dir string, v Verdict) error {
	text, err := os.Create(filepath.Join(dir, "history.txt"))
	if err != nil {
		return err
	}
	defer text.Close()
	return errors.Join(
		porcupine.VisualizePath(model, v.info, filepath.Join(dir, "history.html")),
		r.WriteText(text),
	)
}

// artifacts returns a folder that is kept after the test, even without the -artifacts flag.
func artifacts(t testing.TB) string {
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		return t.ArtifactDir()
	}
	dir, err := os.MkdirTemp("", "distsync-history-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
