package main

import "github.com/spf13/cobra"

const overview = `Looks at distributed locks in Redis, Valkey, etcd and PostgreSQL. Runs commands
under locks, and frees locks that are stuck. Name the store with --store or
DISTSYNC_STORE:

  export DISTSYNC_STORE=redis://localhost:6379
  distsync ls              lists the held locks and their holders
  distsync show NAME       shows a lock's holders, lease and waiters in line
  distsync doctor          checks whether locks work on the store for this user

Every flag can also be set in the environment: --store-timeout as DISTSYNC_STORE_TIMEOUT,
and so on.

The page docs/operations.md of the repository says what to do about a stuck lock.

Exit status: 0 success; 1 any other failure; 64 the command line is wrong; 69 the store
can't be reached. The help of distsync run and distsync hold lists more.`

const stores = `Name the store with --store URL, or with DISTSYNC_STORE in the environment.

  redis://[USER:PASSWORD@]HOST[:6379][/DATABASE]    Redis, through go-redis
  unix://[USER:PASSWORD@]/PATH/TO/SOCKET[?db=N]
  redis+sentinel://[USER:PASSWORD@]HOST[:26379],HOST,…?master_name=NAME
        USER and PASSWORD are the sentinels'; &username=…&password=… the master's
  redis+cluster://[USER:PASSWORD@]HOST[:6379],HOST,…
  rediss://, rediss+sentinel://, rediss+cluster://  the same over TLS
  valkey://[USER:PASSWORD@]HOST[:6379][/DATABASE]   Valkey or Redis, through valkey-go,
        which detects a cluster by itself;
        with ?master_set=NAME the hosts are sentinels
  valkeys://                                        the same over TLS
  etcd://[USER:PASSWORD@]HOST[:2379],HOST,…
  etcds://                                          the same over TLS:
        ?cacert=FILE&cert=FILE&key=FILE&server_name=NAME&skip_verify=true
  postgres://[USER:PASSWORD@]HOST[:5432],HOST,…/DATABASE
        PostgreSQL, through pgx, with its options ?sslmode=… and so on. With several
        hosts add target_session_attrs=read-write. pgx also reads PGPASSWORD and
        ~/.pgpass. If the schema isn't distsync, add distsync_schema=NAME.

The other options after the ? are the client's: dial_timeout=2s, read_timeout,
client_name, skip_verify=true (TLS), and so on. Certificates are verified with the
system's roots, or with SSL_CERT_FILE. In a user or password, escape these
characters: / as %2F, ? as %3F, # as %23, @ as %40, % as %25. All users of the
machine can see a password on a command line, so put it into DISTSYNC_STORE.

Every flag can also be set in the environment: --store-timeout as
DISTSYNC_STORE_TIMEOUT, --json as DISTSYNC_JSON=true, and so on. The exceptions are
--force, --yes, --forget and -E. The command line takes precedence.

In Redis and Valkey, a lock's key is --prefix and its name. In etcd all locks are
below --prefix, which is distsync/locks/ by default. PostgreSQL has a schema instead
of a prefix.

If the programs use sharded channels, add --sharded: otherwise their waiters aren't
told of releases by this command. Programs do so with WithShardedPubSub, and
Redisson does so in a cluster of version 7 or later.`

// newHelp returns the help topics that aren't about a single command.
func newHelp() []*cobra.Command {
	return []*cobra.Command{{
		Use: "stores", Short: "Describe the URLs of stores, and the environment", Long: stores,
	}}
}
