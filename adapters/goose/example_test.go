package gooselock_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing/fstest"

	"github.com/pressly/goose/v3"

	gooselock "github.com/seed951563bd/distsync/adapters/goose"
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
	db, err := sql.Open("sqlite", file.Name())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	client := dlock.New(membackend.New())
	defer client.Close()

	migrations := fstest.MapFS{ // or an embed.FS
		"00001_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INTEGER);\n")},
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations,
		goose.WithLocker(gooselock.New(client, "migrations")))
	if err != nil {
		fmt.Println(err)
		return
	}
	results, err := provider.Up(context.Background())
	fmt.Println(len(results), "migration has run;", err)
	// Output: 1 migration has run; <nil>
}
