package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/examples/sqlite"
	"github.com/seed951563bd/distsync/internal/test/depth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	contract.Run(t, contract.Harness{NewStore: newStore, Choose: chosen})
}

// chosen selects the cases that depend least on real time: random steps, and cases that check that
// two clients never hold a lock at the same time. The nightly run has all cases.
func chosen(c contract.Case) bool {
	return depth.Now() == depth.Night ||
		c.Tags.Has(contract.Essential) && c.Tags.Has(contract.Exclusion)
}

// The store is in this process, and reads the time from Go's clock. So in a bubble leases expire
// without real time.
func TestContractInVirtualTime(t *testing.T) {
	contract.Run(t, contract.Harness{
		NewStore: newStore, Virtual: true, Choose: chosenInVirtualTime,
	})
}

// chosenInVirtualTime leaves out the cases that create thousands of files, except in the nightly
// run.
func chosenInVirtualTime(c contract.Case) bool {
	many := c.Part == "model" || c.Part == "histories"
	return depth.Now() == depth.Night || c.Tags.Has(contract.Essential) && !many
}

func newStore(t *testing.T) contract.Store {
	file := filepath.Join(t.TempDir(), "locks")
	return contract.Store{
		Backend: func() backend.Backend { // a second one on the file is what another process has
			b, err := sqlite.New(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Close() })
			return b
		},
		Wipe: func() {
			change(t, file, `DELETE FROM holds; DELETE FROM tokens; DELETE FROM totals`)
		},
		PutForeign: func(name string) {
			change(t, file, `INSERT INTO holds VALUES (?, 'foreign', 'no', 'lock', ?, 7)`,
				[]byte(name), 1<<62)
		},
		ForeignIntact: func(name string) bool {
			return change(t, file, `UPDATE holds SET token = 7 WHERE name = ? AND owner = 'foreign'
				AND semaphore = 'no' AND count = 'lock' AND expires = ? AND token = 7`,
				[]byte(name), 1<<62) == 1
		},
	}
}

// change changes the file directly, and returns the number of changed rows.
func change(t *testing.T, file, statement string, args ...any) int64 {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	done, err := db.Exec(statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := done.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
