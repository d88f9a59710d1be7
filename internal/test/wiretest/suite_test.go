package wiretest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/apart"
)

// A test that is skipped, because a server is missing, doesn't also fail because its cases weren't
// found.
func TestNamedInASkippedTest(t *testing.T) {
	if apart.Within() {
		Named(t, "no such case")
		t.Skip("no server")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "DISTSYNC_TEST_APART="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- SKIP: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}
