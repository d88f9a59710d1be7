package postgresbackend

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DefaultSchema is the default schema of the tables and functions. See [WithSchema].
const DefaultSchema = "distsync"

//go:embed schema.sql
var schemaText string

// begins is the SQL at the beginning of each function that writes. It checks that the isolation
// level is READ COMMITTED, which a function can't set for its own transaction. At that level, each
// statement sees what other transactions have committed by then, as the functions require. The SQL
// also turns synchronous commits on, since the server could otherwise lose an acquired lock in a
// crash.
const begins = `	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'distsync: steps need READ COMMITTED, and default_transaction_isolation is %',
			current_setting('transaction_isolation') USING ERRCODE = 'DS001';
	END IF;
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true); -- for this transaction
	END IF;`

// unflushed is the SQL with which a function ends a hold. Its commit isn't flushed: if the server
// crashes before the next flush, the lock is held again, until its lease ends. Later commits, such
// as that of the next acquisition, flush it as well.
const unflushed = `PERFORM set_config('synchronous_commit', 'off', true);`

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Schema returns SQL for migration tools. It creates the backend's tables and functions in the
// given schema, and the schema itself if it doesn't exist. Running the SQL again replaces the
// functions, and keeps the tables and what was granted to roles. It takes EXECUTE from PUBLIC. Run
// it in one transaction.
//
// The role that runs the SQL owns the tables and functions. The functions run with its rights, so
// use a role that nobody logs in as. Other roles can execute the functions only after EXECUTE has
// been granted to them (see "Access" in the package's comment).
//
// Like [WithSchema], Schema panics unless the name consists of at most 63 lower-case letters,
// digits and underscores, and doesn't begin with a digit.
func Schema(schema string) string {
	mustBeSchema(schema)
	quoted := pgx.Identifier{schema}.Sanitize()
	text := strings.NewReplacer(
		"{schema}", quoted, "{s}", quoted+".", "{literal}", "'"+schema+"'",
		"{begin}", begins, "{unflushed}", unflushed,
		"{grant}", strconv.FormatInt(grantLease.Milliseconds(), 10),
	).Replace(schemaText)
	var b strings.Builder
	b.WriteString(text)
	b.WriteString("\n-- Functions may be executed by everybody who isn't told otherwise.\n")
	for _, f := range functions.FindAllStringSubmatch(text, -1) {
		fmt.Fprintf(&b, "REVOKE ALL ON FUNCTION %s FROM PUBLIC;\n", signature(f[1], f[2]))
	}
	return b.String()
}

// functions matches the head of each function in the SQL.
var functions = regexp.MustCompile(
	`(?s)CREATE OR REPLACE FUNCTION (\S+?distsync_v1_\w+)\(([^)]*)\)`)

// signature returns a function's name and the types of its arguments.
func signature(name, args string) string {
	var in []string
	for arg := range strings.SplitSeq(args, ",") {
		if arg = strings.TrimSpace(arg); arg != "" && !strings.HasPrefix(arg, "OUT ") {
			in = append(in, arg)
		}
	}
	return name + "(" + strings.Join(in, ", ") + ")"
}

func mustBeSchema(schema string) {
	if !schemaName.MatchString(schema) {
		panic(fmt.Sprintf("postgresbackend: %q is no name of a schema here: lower-case letters, "+
			"digits and underscores", schema))
	}
}

// create runs the SQL of Schema. An advisory lock makes that safe if many processes do it at once.
func create(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 7405))`,
			pgx.QueryExecModeExec, "schema of distsync_v1 "+schema); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, Schema(schema), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}
