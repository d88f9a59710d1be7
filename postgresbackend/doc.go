// Package postgresbackend keeps distributed locks in PostgreSQL with pgx, for programs that already
// have a database. Locks work as in the other stores. Only this store offers [Backend.Guard], which
// makes sure that a transaction of the program has ended before another holder gets the lock.
//
//	pool, err := pgxpool.New(ctx, "postgres://app@localhost:5432/orders")
//	if err != nil {
//		return err
//	}
//	defer pool.Close()
//	client := dlock.New(postgresbackend.New(pool))
//	defer client.Close()
//
//	err = client.Locker("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// Package [github.com/seed951563bd/distsync/dlock] describes the locks. This page is about
// PostgreSQL. A migration with the text of [Schema] creates the tables and functions. With
// [WithCreate] the program itself runs that text when it starts.
//
// # Guarantees
//
// A lock is a row, and each step is a transaction. When an acquisition or a renewal is answered,
// its transaction has been flushed to disk, even in a session whose synchronous_commit is off. So
// locks survive a crash of the server. A release doesn't wait for the flush to disk. The flush
// follows within three times wal_writer_delay, by default 0.6 seconds. A crash or a failover before
// the flush may undo the release. The lock then stays held until its lease ends. Leases follow the
// server's clock. Clocks of different machines are never compared.
//
// If an asynchronous standby takes over, commits that it hasn't received are lost. Then two clients
// may hold the lock until the former holder's next renewal, as with Redis. With
// synchronous_standby_names, acquisitions and renewals wait for the standby, and none is lost, if
// synchronous_commit is on, its default, or remote_apply. With local nothing waits for a standby.
// If no standby confirms, steps end with their contexts, and it is unknown whether they were
// carried out. If somebody cancels such a wait with pg_cancel_backend, the server answers as if the
// standby had confirmed.
//
// As with every lock that expires, a process that was stopped for longer than its lease may write
// before it notices the loss. [Backend.Guard] prevents such writes to the same database. That holds
// even through a failover that loses commits, since the lock and the data are in the same
// write-ahead log.
//
// A lease depends on a clock that somebody might set. A server whose clock steps ahead ends leases
// early, and so does a new primary whose clock is ahead. A new fencing token is larger than the
// row's last one, and no smaller than that clock's time. If an asynchronous failover has lost the
// row's last token, and the new clock is behind, tokens may repeat. Guard doesn't depend on them.
//
// With ALTER TABLE … SET UNLOGGED, locks are no safer than in a Redis without persistence. The
// tables are then empty after a crash, and on every promoted standby. Guard still works, but
// returns an error if max_prepared_transactions allows prepared transactions. Don't put the tables
// into a publication of logical replication.
//
// # Which PostgreSQL
//
// Version 14 or later is needed. Versions 14, 15, 16, 17 and 18 are tested. Steps need READ
// COMMITTED. They check that, and return an error if default_transaction_isolation has another
// value. Clients that share locks must use the same database and schema.
//
// Behind PgBouncer in session mode, everything works. In transaction mode, a client notices that it
// gets no notifications, logs that once, and polls. It also notices the pooler, and prepares no
// statements. No session parameters are set, so any version of PgBouncer works.
//
// # In the database
//
//	SELECT name, owner, count, expires FROM distsync.distsync_v1_lock WHERE expires > now();
//	   name    |               owner               | count |            expires
//	-----------+-----------------------------------+-------+-------------------------------
//	 orders:42 | web-3/4711/Hq7sT2mWcXv0Kd9L:17    |     1 | 2026-11-23 09:14:02.170712+00
//
// Readers, holders of permits, waiters for a fair lock, waiting writers, and sessions that want to
// be notified of a release each have a row in distsync_v1_part. The comments on that table in
// [Schema] say how to tell these rows apart. Latches are in distsync_v1_latch. Names and owners are
// stored verbatim. If they aren't text, or begin with \x, they are stored as \x and hexadecimal
// digits. A name has at most 2,500 bytes as it is stored, and a name and an owner together have at
// most 2,650. A row of an unknown kind isn't changed, and causes [backend.ErrConflict].
//
// A row stays after the release of its lock. The next acquisition updates it. The new version of
// the row fits into the same page, so the table doesn't grow while it waits for a vacuum. Every ten
// minutes, each session that acquires locks deletes the rows that expired more than a day ago,
// unless another session is doing so. Programs that end earlier delete none.
//
// Functions never change their meaning. A later version that needs other functions adds them as
// distsync_v2_. So programs of two versions can work on the same locks. Run the new version's text
// of [Schema] before its programs, and grant EXECUTE again if it has new functions.
//
// # Waiting
//
// Each waiting client has its own connection that listens, and a note in the database. A release
// that finds notes sends a message after its commit. A release that finds none sends nothing. The
// client relies on the connection once it has received a test message. The connection stays until
// the client is closed.
//
// PostgreSQL wakes every listening connection of the database for every message. In measurements, a
// server passed on 27,000 messages a second with no listening connection, 2,400 with fifty, and 700
// with a hundred and fifty. If hundreds of processes wait for locks, use [Polling].
//
// Waiters for a fair lock have a place in line in the database. A release gives the lock to the
// first of them, for two seconds. In that time its client renews it.
//
// # Costs
//
// A lock takes a round trip and a flushed commit, an unlock a round trip and a commit that isn't
// flushed. An attempt at a held lock only reads. Waiting writes only a note. One statement renews
// 1,000 holds. Redis is better for short critical sections that many processes compete for. Session
// advisory locks need no commit, and take a third of the time. But they are lost with their
// connection, without notice, and don't work behind a pooler in transaction mode.
//
// Goroutines that lock and unlock at about the same time share a round trip and a commit. That
// applies to plain and fenced locks that are free, or held once. A goroutine that is alone never
// waits for another, and a row that stays locked delays only its own lock.
//
// Each client opens two connections of its own, so that steps don't wait behind the program's
// queries. Renewals, releases, and acquisitions of plain and fenced locks use them. Other steps,
// and repeated acquisitions, take a connection from the pool, each for one or two round trips. The
// first call that waits opens one more connection, which listens.
//
// A guarded transaction that hangs keeps all others out of its lock. So set
// idle_in_transaction_session_timeout, and statement_timeout for its statements. An acquisition of
// a plain or fenced lock waits for such a transaction for a quarter of a second, and tries again
// after 100 ms. Others try again every 100 ms. Snapshots that are hours old, prepared transactions
// and replication slots keep dead rows in these tables, as in others, and make steps slower.
//
// # Access
//
// The functions run with the rights of their owner, which is the role that ran the text of
// [Schema]. Use a role that nobody logs in as:
//
//	CREATE ROLE locks NOLOGIN;
//	GRANT CREATE ON DATABASE orders TO locks;
//	BEGIN;
//	SET LOCAL ROLE locks;
//	-- the text of Schema
//	COMMIT;
//
// Other roles need the right to use the schema and to execute the functions, but none on the
// tables:
//
//	GRANT USAGE ON SCHEMA distsync TO app;
//	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA distsync TO app;
//
// That is also enough for Guard. A role that may execute the functions can release any lock, since
// an owner's name isn't a password.
package postgresbackend
