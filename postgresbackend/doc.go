// Package postgresbackend keeps distributed locks in PostgreSQL, by way of pgx, for programs that have
// a database already. Locks work as in the other stores. Only this store has [Backend.Guard]: it makes
// a transaction of the program's own one that is over before anybody else gets the lock.
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
// Package [github.com/seed951563bd/distsync/dlock] says what you can do with a lock. This page is about
// PostgreSQL. A migration with the text of [Schema] creates the tables and functions, or the program
// itself does: [WithCreate].
//
// # What is promised, and what is not
//
// A lock is a row, and each step is a transaction that has been flushed to disk when it is
// answered, also in a session whose synchronous_commit is off. So locks outlive a crash of the
// server. Leases follow the server's clock; no clocks of different machines are compared.
//
// If an asynchronous standby takes over, the last commits are lost: two may then have the lock until
// the former holder's next renewal, as with Redis. With synchronous_standby_names nothing is lost. Then
// commits wait for the standby: if there is none, steps end with their contexts, and it is unknown
// whether they were carried out. Canceling such a wait by hand (pg_cancel_backend) has the server
// answer as if the standby had confirmed.
//
// As with every lock that ends by itself, a process that was stopped for longer than its lease may act
// before it notices. [Backend.Guard] keeps its writes to the same database right, even through a
// failover that loses commits, since lock and data are in one log.
//
// A lease goes by a clock that may be set: a server whose clock steps ahead, or a standby whose clock
// is ahead, ends leases early. Fencing tokens grow by that clock and the row. If an asynchronous
// failover has lost the row's last token, and the new clock is behind, tokens may repeat. Guard doesn't
// depend on them.
//
// The tables can be made UNLOGGED (ALTER TABLE … SET UNLOGGED), for the promise of a Redis without
// persistence: they are empty after a crash, and on every standby that was promoted. Guard goes on
// being exact then, but refuses where transactions can be prepared (max_prepared_transactions).
// They don't belong into a publication of logical replication.
//
// # Which PostgreSQL
//
// 14 or later; it is tested on 14, 15, 16, 17 and 18. Steps need READ COMMITTED: they look, and
// refuse where default_transaction_isolation is another. A database is one store: clients that share
// locks use the same database and schema.
//
// Through PgBouncer all works in session mode. In transaction mode a client notices that it isn't told
// of releases, logs that once, and polls. It notices the pooler, too, and prepares no statements. No
// parameters are set, so any version will do.
//
// # In the database
//
//	SELECT name, owner, count, expires FROM distsync.distsync_v1_lock WHERE expires > now();
//	   name    |  owner   | count |            expires
//	-----------+----------+-------+-------------------------------
//	 orders:42 | 6ab0…:17 |     1 | 2026-11-23 09:14:02.170712+00
//
// Readers, holders of permits, waiters for a fair lock, waiting writers, and sessions that want to be
// told of a release have a row each in distsync_v1_part: its comments in [Schema] tell them apart. Names
// and owners are stored as they are; if they aren't text, or begin with \x, they are \x and
// hexadecimal. A name has at most 2,500 bytes. A row of an unknown kind is left alone, and reported as
// [backend.ErrConflict].
//
// A row stays when its lock is released: the next acquisition is an update within its page, which needs
// no vacuum to find room. Every ten minutes, one session deletes rows that have been over for a day.
//
// Functions never change their meaning. A version that needs others adds them, named distsync_v2_, so
// that programs of two versions work on the same locks.
//
// # Waiting
//
// Each waiting client has a connection of its own that listens, and a note in the database. A release
// that finds notes sends a message when it is committed; one without notes costs nothing more. The
// client trusts the connection once it has heard a test message.
//
// PostgreSQL wakes every listening connection of the database for every message: 27,000 messages a
// second with none, 2,400 with fifty and 700 with a hundred and fifty were measured. If hundreds of
// processes wait for locks, use [Polling].
//
// Waiters for a fair lock have a place in line in the database. A release gives the lock to the first
// of them, for two seconds, in which it renews it.
//
// # Costs
//
// A lock and an unlock take a round trip each, and a commit that is flushed. Finding a lock held is a
// read. Waiting writes only a note. One statement renews 1,000 holds. Redis is better at short critical
// sections that many processes compete for. Session advisory locks commit nothing, and take a third of
// the time, but are lost unseen with their connection, and stranded by poolers.
//
// Goroutines that lock and unlock at about the same time share a round trip and a commit: plain and
// fenced locks that are free, and those that are held once. A goroutine that is alone waits for no
// other, and a row that is kept locked holds up no others.
//
// A client has two connections of its own, for these, for renewals and for releases, which must not
// wait behind a program's own queries. It takes one of the pool for each other step under way, and
// has one that listens while calls wait.
//
// Set idle_in_transaction_session_timeout if transactions are guarded: one that hangs keeps everybody
// out of its lock. An acquisition that finds such a transaction waits for it for a quarter of a second,
// and then looks again every 100 ms. Snapshots that are hours old, prepared transactions and
// replication slots keep dead rows in these tables as in others, and make steps slower.
//
// # Access
//
// The functions run with the rights of their owner, the role that ran the text of [Schema]: best a role
// that nobody logs in as. Other roles need the right to use the schema and execute the functions, and
// none to the tables:
//
//	GRANT USAGE ON SCHEMA distsync TO app;
//	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA distsync TO app;
//
// That is enough for Guard, too. A role that may execute them may release any lock: owners are no
// passwords.
package postgresbackend
