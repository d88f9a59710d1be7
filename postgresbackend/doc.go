// Package postgresbackend keeps distributed locks in PostgreSQL, by way of pgx, for programs that
// have a database already: locks with leases that are renewed, waited for and re-entered, as in the
// other stores, and what no other store has: a transaction of the program's own that is over before
// anybody else gets the lock. That is [Backend.Guard].
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
// What one can do with a lock is in package [github.com/seed951563bd/distsync/dlock], and what
// follows is about PostgreSQL. Its tables and functions are created by a migration that has the
// text of [Schema], or by the program itself: [WithCreate].
//
// # What is promised, and what is not
//
// A lock is a row, and each step is a transaction that has been flushed to disk when it is
// answered, also in a session whose synchronous_commit is off. So locks outlive a crash of the
// server. Leases follow the server's clock; no clocks of different machines are compared.
//
// Where a standby takes over that follows asynchronously, the last commits are lost: two may then
// have the lock until the former holder next renews, as with Redis. With synchronous_standby_names
// nothing is lost. Then commits wait for the standby: if there is none, steps end with their
// contexts, and nobody knows whether they were carried out. Somebody who cancels such a wait by
// hand (pg_cancel_backend) has the server answer as if the standby had confirmed.
//
// As with every lock that ends by itself, a process that was stopped for longer than its lease may
// act before it notices. What it writes into the same database [Backend.Guard] keeps right, without
// any doubt: also through a failover that loses commits, since lock and data are in one log.
//
// A lease is counted by a clock that may be set: a server whose clock steps ahead, or a standby
// whose clock is ahead, ends leases early. The number of a fenced lock is larger than those before
// by that clock and the row; where an asynchronous failover has lost the row's last number and the
// new clock is behind, numbers may come again. Guard doesn't rest on that.
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
// Through PgBouncer all works in session mode. In transaction mode a client notices that it isn't
// told of releases, says so once in the log, and polls. It notices the pooler, too, and then
// prepares no statements. No parameters are set. So any version will do.
//
// # In the database
//
//	SELECT name, owner, count, expires FROM distsync.distsync_v1_lock WHERE expires > now();
//	   name    |  owner   | count |            expires
//	-----------+----------+-------+-------------------------------
//	 orders:42 | 6ab0…:17 |     1 | 2026-11-23 09:14:02.170712+00
//
// Readers, those who have permits, those who stand in line for a fair lock or wait to write, and
// sessions that want to be told of a release have a row each in distsync_v1_part: its comments in
// [Schema] say which is which. Names and owners are stored as they are; what isn't text, and what
// begins with \x, is \x and hexadecimal. A name has at most 2,500 bytes. A row whose kind is none
// of this package's is left alone, and reported as [backend.ErrConflict].
//
// A row stays when its lock is released: the next acquisition is an update within its page, which
// needs no vacuum to find room. What has been over for a day is deleted, by one session of all,
// every ten minutes.
//
// Functions never change what they mean. A version that needs others has others, named
// distsync_v2_, beside them, so that programs of two versions work on the same locks.
//
// # Waiting
//
// Each client that waits has a connection of its own that listens, and a note in the database. A
// release that finds notes sends a message when it has been committed; one that finds none costs
// nothing more. The connection is believed when it has heard a message that was sent to it.
//
// PostgreSQL wakes every connection of the database that listens for every message, whoever it is
// for: 27,000 messages a second with none, 2,400 with fifty and 700 with a hundred and fifty were
// measured. Where hundreds of processes wait for locks, [Polling] is the better way.
//
// Those who wait for a fair lock have a place in line in the database, and a release gives the lock
// to the first of them, for two seconds, in which it renews it.
//
// # Costs
//
// To lock, and to unlock, take a round trip each, and a commit that is flushed; to find a lock held
// is a read, which writes nothing. So does waiting, but for a note. 1,000 holds are renewed by one
// statement. Short critical sections that many processes fight for are what Redis is better at;
// session advisory locks commit nothing, and take a third of the time, but are lost unseen with
// their connection, and stranded by poolers.
//
// A client takes a connection of the pool for each step under way, two of its own for renewals and
// releases, which must not stand behind a program's own queries, and one that listens once somebody
// waits.
//
// Set idle_in_transaction_session_timeout where transactions are guarded: one that hangs keeps
// everybody out of its lock. An acquisition that finds such a transaction waits for it for a
// quarter of a second, and then looks again every 100 ms. Snapshots that are hours old, prepared
// transactions and replication slots keep dead rows in these tables as in others, and make steps
// slower.
//
// # Access
//
// The functions run with the rights of their owner, who is whoever ran the text of [Schema]: best a
// role that nobody logs in as. Everybody else needs the right to use the schema and execute the
// functions, and none to the tables:
//
//	GRANT USAGE ON SCHEMA distsync TO app;
//	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA distsync TO app;
//
// That is so for Guard, too. Whoever may execute them may release any lock: owners are no
// passwords.
package postgresbackend
