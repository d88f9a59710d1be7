// Package migratelock has one replica at a time run migrations of [github.com/golang-migrate/migrate/v4], on any database.
//
//	import migratelock "github.com/seed951563bd/distsync/adapters/migrate"
//
//	client := dlock.New(redisbackend.New(rdb))
//	driver, err := postgres.WithInstance(db, &postgres.Config{})
//	if err != nil {
//		return err
//	}
//	m, err := migrate.NewWithInstance("iofs", source, "postgres", migratelock.New(driver, client, "migrations"))
//	if err != nil {
//		return err
//	}
//	err = m.Up()
//
// The locks of migrate's drivers are the database's: some databases have none, and others lose them behind a proxy that shares connections (PgBouncer). With
// this every replica may migrate when it starts: one of them has the lock, which is renewed for as long as the migrations take, and the others wait, and then find nothing to
// do (migrate.ErrNoChange). If the process dies, the lock ends with its lease (see [dlock.WithLease]). A migration in whose middle it dies is marked as dirty, as ever, and no replica runs
// it again until somebody has looked.
//
// migrate gives up after 15 s (Migrate.LockTimeout), but has no means to tell a driver: a lock that was waited for would come later, and nobody would give it back. So a [Driver] waits
// for 10 s at most. If migrations take longer than that, let replicas wait longer, with [WithWait] and a larger LockTimeout, or call Up again while the error is
// database.ErrLocked.
//
// migrate doesn't let migrations know that the lock is lost (the store was away for longer than the lease, say): they go on, and the error that Up returns wraps
// [dlock.ErrLost].
package migratelock
