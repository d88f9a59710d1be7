package main

import "github.com/spf13/cobra"

const overview = `Looks at distributed locks in Redis, Valkey, etcd and PostgreSQL, runs commands
under them, and frees those that are stuck. Say which store with --store or DISTSYNC_STORE:

  export DISTSYNC_STORE=redis://localhost:6379
  distsync ls              which locks are held, and by whom
  distsync show NAME       who has one, for how long, and who stands in line
  distsync doctor          whether locks can work there, for this user

Every flag can be given in the environment: --store-timeout as DISTSYNC_STORE_TIMEOUT, and so on.

What to do with a lock that is stuck is in docs/operations.md of the repository.

Exit status: 0 done; 1 something else has failed; 64 the command line is wrong; 69 the
store can't be reached; and those of distsync run and hold: see there.`

const stores = `The store is said by --store URL, or by DISTSYNC_STORE in the environment.

  redis://[USER:PASSWORD@]HOST[:6379][/DATABASE]    a Redis, by go-redis
  unix://[USER:PASSWORD@]/PATH/TO/SOCKET[?db=N]
  redis+sentinel://[USER:PASSWORD@]HOST[:26379],HOST,…?master_name=NAME
        USER and PASSWORD are the sentinels'; &username=…&password=… the master's
  redis+cluster://[USER:PASSWORD@]HOST[:6379],HOST,…
  rediss://, rediss+sentinel://, rediss+cluster://  the same by TLS
  valkey://[USER:PASSWORD@]HOST[:6379][/DATABASE]   a Valkey or Redis, by valkey-go,
        which finds out by itself whether that is a cluster;
        with ?master_set=NAME the hosts are sentinels
  valkeys://                                        the same by TLS
  etcd://[USER:PASSWORD@]HOST[:2379],HOST,…
  etcds://                                          the same by TLS:
        ?cacert=FILE&cert=FILE&key=FILE&server_name=NAME&skip_verify=true
  postgres://[USER:PASSWORD@]HOST[:5432],HOST,…/DATABASE
        by pgx, which takes ?sslmode=…&target_session_attrs=read-write and so on,
        and PGPASSWORD or ~/.pgpass; ?distsync_schema=NAME if that isn't distsync

The other options after the ? are those of the client: dial_timeout=2s,
read_timeout, client_name, skip_verify=true (TLS), and so on. Certificates are
checked by what the system trusts, or SSL_CERT_FILE. In a user or a password
these have to be escaped: / as %2F, ? as %3F, # as %23, @ as %40, % as %25.
A password on a command line is seen by all users of the machine: better put it
into DISTSYNC_STORE.

Every flag can be given in the environment as well: --store-timeout as
DISTSYNC_STORE_TIMEOUT, --json as DISTSYNC_JSON=true, and so on; but not --force,
--yes, --forget and -E. The command line goes first.

With Redis and Valkey a lock's name is its key, after --prefix. In etcd all locks
are below --prefix, by default distsync/locks/. In PostgreSQL there is a schema
instead.

Where the programs use sharded channels (WithShardedPubSub; Redisson does with a
cluster of version 7 or later), say --sharded: else who waits doesn't hear of what is
unlocked here.`

// newHelp returns the help topics that aren't about a single command.
func newHelp() []*cobra.Command {
	return []*cobra.Command{{
		Use: "stores", Short: "The URLs of stores, and the environment", Long: stores,
	}}
}
