// Package migratelock has one replica at a time run migrations of github.com/golang-migrate/migrate/v4, on any database.
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
//			err = m.Up() // another replica still migrates
//		}
//		if err != nil && !errors.Is(err, migrate.ErrNoChange) {
//			log.Fatal(err)
//		}
//	}
//
// The locks of migrate's drivers are the database's. Some databases have none, and others lose them behind a proxy that
// shares connections (PgBouncer). With this every replica may migrate when it starts. One of them has the lock, which is
// renewed for as long as the migrations take. The others wait, and then find nothing to do (migrate.ErrNoChange). If the
// process dies, the lock ends with its lease (30 s, see [dlock.WithLease]). A migration in whose middle it dies is marked as
// dirty, as ever, and no replica runs it again until somebody has looked.
//
// migrate gives up after 15 s (Migrate.LockTimeout), but has no means to tell a driver: the lock would come later, and
// nobody would give it back. So a [Driver] waits for 10 s at most. If migrations take longer than that, let replicas wait
// longer, with [WithWait] and a larger LockTimeout, or call Up again while the error is database.ErrLocked.
//
// migrate doesn't let migrations know that the lock is lost (the store was away for longer than the lease, say). They go on,
// and the error that Up returns wraps [dlock.ErrLost]. While the store is away nobody begins: Up returns an error that wraps
// [dlock.ErrUnavailable] after those 10 s. Clocks make no difference.
package migratelock
