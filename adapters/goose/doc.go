// Package gooselock has one replica at a time run migrations of github.com/pressly/goose/v3, on any database.
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
//		db, err := sql.Open("sqlite", "service.db") // or any other database of goose's
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
// goose's own locks are the database's, and some databases have none, or lose them behind a proxy that shares connections
// (PgBouncer). With this every replica may migrate when it starts. One of them has the lock, which is renewed for as long
// as the migrations take. The others wait, as long as ctx allows, and then find nothing to do. If the process dies, the lock
// ends with its lease (30 s, see [dlock.WithLease]), and the next replica goes on with what is left. If a migration fails
// the lock is given back, and the next replica tries. While the store of locks is away nobody begins: Up waits for that,
// too, as long as ctx allows. Clocks make no difference.
//
// goose doesn't let migrations know that the lock is lost (the store was away for longer than the lease, say). They go on,
// and the error that Up returns wraps [dlock.ErrLost]. Where they should stop, do without this package:
//
//	err := client.Locker("migrations").Do(ctx, func(ctx context.Context) error {
//		_, err := provider.Up(ctx) // ctx ends if the lock is lost
//		return err
//	})
package gooselock
