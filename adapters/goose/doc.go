// Package gooselock lets one replica at a time run migrations with github.com/pressly/goose/v3, on
// any database.
//
//	package main
//
//	import (
//		"context"
//		"database/sql"
//		"log"
//		"os"
//		"time"
//
//		"github.com/pressly/goose/v3"
//		"github.com/redis/go-redis/v9"
//		_ "modernc.org/sqlite"
//
//		gooselock "github.com/seed951563bd/distsync/adapters/goose"
//		"github.com/seed951563bd/distsync/dlock"
//		"github.com/seed951563bd/distsync/redisbackend"
//	)
//
//	func main() {
//		rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//		client := dlock.New(redisbackend.New(rdb))
//		defer client.Close()
//		db, err := sql.Open("sqlite", "service.db") // or any other database that goose supports
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer db.Close()
//		provider, err := goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("migrations"),
//			goose.WithLocker(gooselock.New(client, "migrations")))
//		if err != nil {
//			log.Fatal(err)
//		}
//		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
//		defer cancel()
//		if _, err := provider.Up(ctx); err != nil {
//			log.Fatal(err)
//		}
//	}
//
// goose's own locks are database locks. Some databases have none, or lose them behind a proxy that
// shares connections (PgBouncer). With this package, every replica can migrate when it starts. One
// of them gets the lock, which is renewed until the migrations end. The others wait, as long as ctx
// allows, and then find nothing to do. If the process dies, the lock ends with its lease (30 s, see
// [dlock.WithLease]), and the next replica runs the remaining migrations. If a migration fails, the
// lock is released, and the next replica tries. While the lock store is down, no replica starts to
// migrate. Up then waits for the store, as long as ctx allows. The clocks of the replicas need not
// agree.
//
// goose has no way to tell running migrations that the lock is lost, for example because the store
// was down for longer than the lease. They continue, and the error of Up wraps [dlock.ErrLost]. To
// stop them, use a [dlock.Locker] instead of this package:
//
//	err := client.Locker("migrations").Do(ctx, func(ctx context.Context) error {
//		_, err := provider.Up(ctx) // ctx ends if the lock is lost
//		return err
//	})
package gooselock
