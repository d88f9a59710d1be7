package migratelock_test

import (
	"errors"
	"fmt"
	"os"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	migratelock "github.com/seed951563bd/distsync/adapters/migrate"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// Each replica does this when it starts, with a store of locks that they share: here that is
// memory.
func Example() {
	file, err := os.CreateTemp("", "*.db")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(file.Name())
	defer file.Close()
	client := dlock.New(membackend.New())
	defer client.Close()

	// or WithInstance, with a *sql.DB
	driver, err := new(sqlite.Sqlite).Open("sqlite://" + file.Name())
	if err != nil {
		fmt.Println(err)
		return
	}
	migrations := fstest.MapFS{ // or an embed.FS
		"1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id INTEGER);")},
	}
	source, err := iofs.New(migrations, ".")
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := migrate.NewWithInstance("iofs", source, "sqlite",
		migratelock.New(driver, client, "migrations"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		fmt.Println(err)
		return
	}
	version, dirty, err := m.Version()
	fmt.Println(version, dirty, err)
	// Output: 1 false <nil>
}
