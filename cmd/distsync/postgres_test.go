package main

import (
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// Faults of a server, and missing rights of a role, are found.
func TestDoctorOfPostgres(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "default_transaction_isolation=serializable",
		"max_connections=10")
	url := testservers.PostgresURL(server.Addr)
	checks, status := diagnose(t, "--store", url)
	if status != exitFailed {
		t.Errorf("status %d", status)
	}
	want(t, checks, "functions", statusFail, "none of distsync's")
	want(t, checks, "exclusive", statusFail, "isn't there")
	want(t, checks, "settings", statusFail, "serializable")
	want(t, checks, "server", statusWarn, "connections are left")

	server.SQL("SET default_transaction_isolation = 'read committed';" +
		postgresbackend.Schema("locks"))
	server.SQL(`ALTER TABLE locks.distsync_v1_part SET UNLOGGED; CREATE ROLE app LOGIN;
		ALTER ROLE app SET default_transaction_isolation = 'read committed';
		GRANT USAGE ON SCHEMA locks TO app`)
	app := strings.Replace(url, "postgres@", "app@", 1) + "&distsync_schema=locks"
	checks, _ = diagnose(t, "--store", app)
	want(t, checks, "functions", statusFail, "may execute 0 of")
	want(t, checks, "settings", statusWarn, "fsync is off")
	want(t, checks, "tables", statusWarn, "unlogged")
	server.SQL(`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA locks TO app`)
	checks, status = diagnose(t, "--store", app)
	want(t, checks, "functions", statusOK, `"locks"`)
	want(t, checks, "exclusive", statusOK, "released")
	want(t, checks, "encoding", statusOK, "UTF8")
	if status != 0 {
		t.Errorf("status %d of a store with warnings", status)
	}
	server.SQL(`CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0`)
	checks, _ = diagnose(t, "--store", strings.Replace(url, "/postgres?", "/latin?", 1))
	want(t, checks, "encoding", statusWarn, "LATIN1")
}

// With local commits, nothing waits for a standby, whatever its settings say.
func TestDoctorOfLocalCommits(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "synchronous_standby_names=missing",
		"synchronous_commit=local")
	server.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
	checks, _ := diagnose(t, "--store", testservers.PostgresURL(server.Addr))
	want(t, checks, "standbys", statusOK, "wait for no standby")
	want(t, checks, "exclusive", statusOK, "released")
}

// Where nobody can be told of releases the doctor says so.
func TestDoctorBehindABouncer(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	server.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
	bouncer := testservers.PgBouncer(t, server, "pool_mode = transaction")
	checks, _ := diagnose(t, "--store", testservers.PostgresURL(bouncer.Addr))
	want(t, checks, "messages", statusFail, "LISTEN hears nothing")
	want(t, checks, "fair", statusOK, "released")
}

// Errors in a URL are reported without the URL.
func TestPostgresURLs(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"postgres://app:secret@localhost/db?sslmode=perhaps":        "pgx doesn't understand it",
		"postgres://app:secret@localhost/db?distsync_schema=My-One": "lower-case letters",
		"postgres://app:secret@localhost/db%zz":                     "%25",
	} {
		got := distsync(t, "ls", "--store", url)
		if got.status != exitUsage || !strings.Contains(got.stderr, says) ||
			strings.Contains(got.stderr, "secret") {
			t.Errorf("%s: %+v, want status %d and %q", url, got, exitUsage, says)
		}
	}
	for _, flag := range []string{"--sharded", "--prefix=a"} {
		if got := distsync(t, "ls", flag, "--store",
			"postgres://localhost/db"); got.status != exitUsage {
			t.Errorf("%s: %+v", flag, got)
		}
	}
}
