// Package gooselock has one replica at a time run migrations of [github.com/pressly/goose/v3], on any database.
//
//	import gooselock "github.com/seed951563bd/distsync/adapters/goose"
//
//	client := dlock.New(redisbackend.New(rdb))
//	provider, err := goose.NewProvider(goose.DialectClickHouse, db, migrations,
//		goose.WithLocker(gooselock.New(client, "migrations")))
//	if err != nil {
//		return err
//	}
//	_, err = provider.Up(ctx)
//
// goose's own locks are the database's, and some databases have none, or lose them behind a proxy that shares connections (PgBouncer). With this every replica
// may migrate when it starts: one of them has the lock, which is renewed for as long as the migrations take, and the others wait, as long as ctx allows, and then find
// nothing to do. If the process dies, the lock ends with its lease (see [dlock.WithLease]), and the next replica goes on with what is left.
//
// goose doesn't let migrations know that the lock is lost (the store was away for longer than the lease, say): they go on, and the error that Up returns wraps [dlock.ErrLost]. Where
// they should stop, do without this package:
//
//	err := client.Locker("migrations").Do(ctx, func(ctx context.Context) error {
//		_, err := provider.Up(ctx) // ctx ends if the lock is lost
//		return err
//	})
package gooselock
