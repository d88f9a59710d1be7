package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/postgresbackend"
)

// schemaOption is the URL option for the schema of the locks. All other options are passed to pgx.
const schemaOption = "distsync_schema"

func (s *store) openPostgres(g *global) (err error) {
	a := s.address
	if g.sharded {
		return exitf(exitUsage, "--sharded: PostgreSQL has no such channels")
	}
	if g.prefix != "" {
		return exitf(exitUsage,
			"--prefix: in PostgreSQL locks have a schema instead: ?%s=NAME in the URL",
			schemaOption)
	}
	q, _ := url.ParseQuery(a.query) // parseStore has checked it
	schema := postgresbackend.DefaultSchema
	if q.Has(schemaOption) {
		schema = q.Get(schemaOption)
		q.Del(schemaOption)
	}
	u := url.URL{
		Scheme: a.scheme, User: a.user, Host: strings.Join(a.hosts, ","), RawQuery: q.Encode(),
	}
	u.Path, err = url.PathUnescape(a.path)
	if err != nil {
		return wrong(errors.New("in the name of the database write % as %25"))
	}
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return wrong(errors.New("pgx doesn't understand it")) // its error quotes the URL
	}
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout > g.timeout {
		config.ConnConfig.ConnectTimeout = g.timeout
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // also works with poolers
	option, err := schemaNamed(schema)
	if err != nil {
		return wrong(err)
	}
	if s.postgres, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		return wrong(errors.New("pgx rejects its options"))
	}
	s.schema = schema
	s.Backend = postgresbackend.New(s.postgres, option)
	return nil
}

// schemaNamed returns the backend option for a schema, or an error if the name is invalid.
func schemaNamed(schema string) (option postgresbackend.Option, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf(
				"%s=%s: want a name of lower-case letters, digits and underscores",
				schemaOption, schema)
		}
	}()
	return postgresbackend.WithSchema(schema), nil
}

// checkPostgres checks the server and the database, but not the locks.
func (d *doctor) checkPostgres(ctx context.Context) {
	for _, look := range []func(context.Context){
		d.checkServer, d.checkFunctions, d.checkSettings, d.checkEncoding, d.checkTables,
		d.checkStandbys, d.checkSnapshots, d.checkListeners, d.checkTime,
	} {
		if ctx.Err() == nil {
			ctx, cancel := d.bounded(ctx)
			look(ctx)
			cancel()
		}
	}
}

// ask scans one row into dest. If the query fails, ask prints a warning and returns false.
func (d *doctor) ask(ctx context.Context, name, sql string, args []any, dest ...any) bool {
	err := d.postgres.QueryRow(ctx, sql, args...).Scan(dest...)
	if err != nil {
		d.warn(name, "look with psql, as a role with more rights", "the check failed: %v", err)
	}
	return err == nil
}

func (d *doctor) checkServer(ctx context.Context) {
	var version int
	var text string
	var standby, readOnly bool
	var left int
	if !d.ask(ctx, "server",
		`SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
		pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean,
		current_setting('max_connections')::integer - (SELECT count(*) FROM pg_stat_activity
			WHERE backend_type = 'client backend')`,
		nil, &version, &text, &standby, &readOnly, &left) {
		return
	}
	switch {
	case version < 140000:
		d.fail("server", "use PostgreSQL 14 or later", "PostgreSQL %s", text)
	case standby:
		d.fail("server", "name all hosts in the URL, and target_session_attrs=read-write",
			"PostgreSQL %s, a standby: it grants no locks", text)
	case readOnly:
		d.fail("server", "turn default_transaction_read_only off for this role or database",
			"PostgreSQL %s, read-only", text)
	case left < 10:
		d.warn("server",
			"raise max_connections: a program uses up to seven connections, and one more to wait",
			"PostgreSQL %s; %d connections are left", text, left)
	default:
		d.ok("server", "PostgreSQL %s; %d connections are left", text, left)
	}
}

func (d *doctor) checkFunctions(ctx context.Context) {
	var there, may int
	if !d.ask(ctx, "functions",
		`SELECT count(*), count(*) FILTER (WHERE has_function_privilege(p.oid, 'EXECUTE'))
		FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = $1 AND p.proname LIKE 'distsync\_v1\_%' AND p.prosecdef`,
		[]any{d.schema}, &there, &may) {
		return
	}
	switch {
	case there == 0:
		d.fail("functions", "run the text of postgresbackend.Schema as a migration, or create the "+
			"backend with WithCreate", "the schema %q has none of distsync's functions", d.schema)
	case may < there:
		d.fail("functions",
			fmt.Sprintf("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO the role of the program",
				d.schema), "this role may execute %d of %d functions", may, there)
	default:
		d.ok("functions", "this role may execute all functions in the schema %q", d.schema)
	}
}

func (d *doctor) checkSettings(ctx context.Context) {
	var isolation, commit, fsync, pages string
	if !d.ask(ctx, "settings",
		`SELECT current_setting('default_transaction_isolation'),
		current_setting('synchronous_commit'), current_setting('fsync'),
		current_setting('full_page_writes')`, nil, &isolation, &commit, &fsync, &pages) {
		return
	}
	switch {
	case isolation != "read committed":
		d.fail("settings",
			"set default_transaction_isolation to read committed, for the role at least",
			"default_transaction_isolation is %s: all lock calls are refused", isolation)
	case fsync != "on" || pages != "on":
		d.warn("settings",
			"turn both on: otherwise a crash of the machine may lose or corrupt locks",
			"fsync is %s, full_page_writes is %s", fsync, pages)
	default:
		d.ok("settings", "locks survive a crash (synchronous_commit is %s)", commit)
	}
}

func (d *doctor) checkEncoding(ctx context.Context) {
	var encoding string
	if !d.ask(ctx, "encoding", `SELECT current_setting('server_encoding')`, nil, &encoding) {
		return
	}
	if encoding != "UTF8" {
		d.warn("encoding", "use names in ASCII only, or a database with encoding UTF8",
			"the encoding is %s: names outside ASCII may be refused, or look wrong", encoding)
		return
	}
	d.ok("encoding", "the encoding is UTF8: all names work")
}

func (d *doctor) checkTables(ctx context.Context) {
	var unlogged int
	var live, dead int64
	if !d.ask(ctx, "tables",
		`SELECT count(*) FILTER (WHERE c.relpersistence <> 'p'),
		coalesce(sum(s.n_live_tup), 0)::bigint, coalesce(sum(s.n_dead_tup), 0)::bigint
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
		WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname LIKE 'distsync\_v1\_%'`,
		[]any{d.schema}, &unlogged, &live, &dead) {
		return
	}
	switch {
	case unlogged > 0:
		d.warn("tables", "ALTER TABLE … SET LOGGED, unless you want that",
			"the tables are unlogged: a crash or the promotion of a standby frees all locks")
	case dead > 10_000 && dead > 10*live:
		d.warn("tables", "find out why autovacuum doesn't remove them: look at old snapshots",
			"%d rows, and %d dead ones, which make locks slow", live, dead)
	default:
		d.ok("tables", "%d rows, %d dead ones", live, dead)
	}
}

func (d *doctor) checkStandbys(ctx context.Context) {
	var named string
	var there int
	if !d.ask(ctx, "standbys",
		`SELECT CASE WHEN current_setting('synchronous_commit') = 'local' THEN ''
			ELSE current_setting('synchronous_standby_names') END,
		(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))`,
		nil, &named, &there) {
		return
	}
	switch {
	case named == "":
		d.ok("standbys",
			"commits wait for no standby: a failover may lose the last locks; Guard stays exact")
	case there == 0:
		d.fail("standbys", "start the standby, or take it out of synchronous_standby_names: "+
			"until then no commit is answered", "commits wait for %s, which isn't connected", named)
	default:
		d.ok("standbys", "%d standbys confirm each commit", there)
	}
}

func (d *doctor) checkSnapshots(ctx context.Context) {
	var snapshot, prepared float64
	var slots int
	if !d.ask(ctx, "snapshots",
		`SELECT coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start))
			FROM pg_stat_activity WHERE backend_xmin IS NOT NULL), 0)::float8,
		coalesce((SELECT max(extract(epoch FROM clock_timestamp() - prepared))
			FROM pg_prepared_xacts), 0)::float8,
		(SELECT count(*) FROM pg_replication_slots WHERE NOT active)`,
		nil, &snapshot, &prepared, &slots) {
		return
	}
	const old = time.Hour
	seconds := func(s float64) time.Duration {
		return time.Duration(s * float64(time.Second)).Round(time.Second)
	}
	switch {
	case seconds(snapshot) > old || seconds(prepared) > old || slots > 0:
		d.warn("snapshots", "end them: they keep dead rows in all tables, which make locks slower",
			"the oldest transaction is %v old, the oldest prepared one %v; %d replication slots "+
				"are unused",
			seconds(snapshot), seconds(prepared), slots)
	default:
		d.ok("snapshots", "the oldest transaction is %v old", seconds(snapshot))
	}
}

func (d *doctor) checkListeners(ctx context.Context) {
	var listen int
	var usage float64
	if !d.ask(ctx, "listeners",
		`SELECT (SELECT count(*) FROM pg_stat_activity
			WHERE application_name LIKE 'distsync listener%'), pg_notification_queue_usage()`,
		nil, &listen, &usage) {
		return
	}
	switch {
	case usage > 0.5:
		d.fail("listeners", "end the session that listens inside a long transaction: when the "+
			"queue is full, every NOTIFY fails",
			"%.0f %% of the notification queue is used", 100*usage)
	case listen > 100:
		d.warn("listeners", "each message wakes all of them: postgresbackend.Polling() costs less",
			"%d connections listen", listen)
	default:
		d.ok("listeners", "%d connections listen", listen)
	}
}

func (d *doctor) checkTime(ctx context.Context) {
	var server time.Time
	before := time.Now()
	if !d.ask(ctx, "clock", `SELECT clock_timestamp()`, nil, &server) {
		return
	}
	took := time.Since(before)
	if off := server.Sub(before.Add(took / 2)).Abs(); off > took+time.Minute {
		d.warn("clock",
			"correct both clocks slowly (NTP): a jump ends leases early or late",
			"the server's clock differs from this machine's by %v", off.Round(time.Second))
		return
	}
	d.ok("clock", "the server's clock agrees with this machine's")
}
