package certmagiclock_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// storages is what certmagic's tests use as a storage, but for those that count calls of a storage
// of their own.
var storages = regexp.MustCompile(
	`(?s)(\bStorage:\s+|\bstorage := |cfg\.Storage = |\bs := )` +
		`&((?:certmagic\.)?FileStorage)\{(.*?)\}`)

// bare is where they look into one.
var bare = regexp.MustCompile(`(\w+\.Storage)\.\(\*FileStorage\)`)

// failures is what a run says of what went wrong.
var failures = regexp.MustCompile(`(?m)^(\s*--- FAIL|.*_test\.go:|panic|WARNING: DATA RACE).*\n`)

// Certmagic's own tests pass with a Storage around each of their storages.
func TestCertmagicsOwn(t *testing.T) {
	t.Parallel()
	binary := buildOwn(t)
	t.Run("memory", func(t *testing.T) { runOwn(t, binary, "") })
	t.Run("redis", func(t *testing.T) { runOwn(t, binary, testservers.Redis(t).Addr) })
}

// buildOwn builds the tests of a copy of certmagic, and returns their binary, next to what they
// need.
func buildOwn(t *testing.T) string {
	folder := t.TempDir()
	source := strings.TrimSpace(
		command(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/caddyserver/certmagic"))
	own := filepath.Join(folder, "certmagic")
	must(t, os.CopyFS(own, os.DirFS(source)))
	rewritten := 0
	tests, err := filepath.Glob(filepath.Join(own, "*_test.go"))
	must(t, err)
	for _, file := range tests {
		text, err := os.ReadFile(file)
		must(t, err)
		rewritten += len(storages.FindAll(text, -1))
		text = storages.ReplaceAll(text, []byte("${1}locked(&${2}{${3}})"))
		text = bare.ReplaceAll(text, []byte("unlocked($1)"))
		must(t, os.Chmod(file, 0o600))
		must(t, os.WriteFile(file, text, 0o600))
	}
	if rewritten < 20 {
		t.Fatalf("only %d storages were found in certmagic's tests", rewritten)
	}
	must(t, os.CopyFS(own, os.DirFS("testdata")))

	root, err := filepath.Abs("../..")
	must(t, err)
	mod, err := os.ReadFile("go.mod")
	must(t, err)
	mod = append([]byte(strings.Replace(string(mod), "../../", root, 1)),
		"\nreplace github.com/caddyserver/certmagic => "+own+"\n"...)
	must(t, os.WriteFile(filepath.Join(folder, "go.mod"), mod, 0o600))
	sum, err := os.ReadFile("go.sum")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "go.sum"), sum, 0o600))
	binary := filepath.Join(own, "own.test")
	command(t, "go", "test", "-modfile="+filepath.Join(folder, "go.mod"), "-race", "-c", "-o",
		binary, "github.com/caddyserver/certmagic")
	return binary
}

// runOwn runs certmagic's tests, but for those that want the network, and one of a storage that
// can't renew, which a Storage always can.
func runOwn(t *testing.T, binary, redis string) {
	cmd := exec.Command(binary, "-test.v",
		"-test.skip=^Test(FindZone|LookupNameservers|RenewLockLeaseWithoutInterface)")
	cmd.Dir = filepath.Dir(binary)
	cmd.Env = append(os.Environ(), "CERTMAGIC_REDIS="+redis, "GORACE=atexit_sleep_ms=0")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, bytes.Join(failures.FindAll(output, -1), nil))
	}
	for _, test := range []string{"TestFileStorageWriteLock", "TestFileStorageStoreLoadRace",
		"TestRenewLockLeaseWithInterface", "TestSaveCertResource"} {
		if !strings.Contains(string(output), "--- PASS: "+test+" ") {
			t.Errorf("certmagic's %s has not run", test)
		}
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var failed strings.Builder
	cmd.Stderr = &failed
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, output, &failed)
	}
	return string(output)
}
