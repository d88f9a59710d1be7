// Package migratelock lets one replica at a time run migrations with
// github.com/golang-migrate/migrate/v4, on any database.
//
//	package main
//
//	import (
//		"errors"
//		"log"
//
//		"github.com/golang-migrate/migrate/v4"
//		"github.com/golang-migrate/migrate/v4/database"
//		_ "github.com/golang-migrate/migrate/v4/database/sqlite" // or any other
//		_ "github.com/golang-migrate/migrate/v4/source/file"
//		"github.com/redis/go-redis/v9"
//
//		migratelock "github.com/seed951563bd/distsync/adapters/migrate"
//		"github.com/seed951563bd/distsync/dlock"
//		"github.com/seed951563bd/distsync/redisbackend"
//	)
//
//	func main() {
//		rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//		client := dlock.New(redisbackend.New(rdb))
//		defer client.Close()
//		driver, err := database.Open("sqlite://service.db")
//		if err != nil {
//			log.Fatal(err)
//		}
//		m, err := migrate.NewWithDatabaseInstance("file://migrations", "sqlite",
//			migratelock.New(driver, client, "migrations"))
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer m.Close()
//		err = m.Up()
//		for errors.Is(err, database.ErrLocked) {
//			err = m.Up() // another replica is still migrating
//		}
//		if err != nil && !errors.Is(err, migrate.ErrNoChange) {
//			log.Fatal(err)
//		}
//	}
//
// The drivers of migrate use database locks. Some databases have none, and others lose them behind
// a proxy that shares connections (PgBouncer). With this package, every replica can migrate when it
// starts. One of them gets the lock, which is renewed until the migrations end. The others wait,
// and then find nothing to do (migrate.ErrNoChange). If the process dies, the lock ends with its
// lease (30 s, see [dlock.WithLease]). If it dies during a migration, that migration is marked as
// dirty, as it is without this package, and no replica runs it again until an operator has repaired
// it.
//
// migrate gives up after 15 s (Migrate.LockTimeout), but can't notify the driver. The driver would
// get the lock later, and no call would release it. So a [Driver] waits for 10 s at most. If
// migrations take longer than that, make replicas wait longer, with [WithWait] and a larger
// LockTimeout, or call Up again while the error is database.ErrLocked.
//
// migrate has no way to tell running migrations that the lock is lost, for example because the
// store was down for longer than the lease. They continue, and the error of Up wraps
// [dlock.ErrLost]. While the store is down, no replica starts to migrate. After the 10 s, Up
// returns an error that wraps [dlock.ErrUnavailable]. The clocks of the replicas need not agree.
package migratelock
