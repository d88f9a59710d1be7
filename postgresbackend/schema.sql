-- What postgresbackend keeps in the database. It may be run again, and by several at once under a
-- lock. Functions named distsync_v1_ never change what they mean: what is new gets a new name.
CREATE SCHEMA IF NOT EXISTS {schema};

-- The functions below run with the rights of their owner. Tables or a schema of somebody else could
-- have triggers that would, too.
DO $do$
DECLARE
	me oid := (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user);
	other text;
BEGIN
	SELECT 'the schema' INTO other FROM pg_catalog.pg_namespace n
		WHERE n.nspname = {literal} AND n.nspowner <> me;
	IF other IS NULL THEN
		SELECT c.relname INTO other
			FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = {literal} AND c.relname LIKE 'distsync\_v1\_%' AND c.relowner <> me
			LIMIT 1;
	END IF;
	IF other IS NOT NULL THEN
		RAISE EXCEPTION
			'distsync: % belongs to another role than %: run this as its owner, or in a schema of its own',
			other, current_user USING ERRCODE = 'DS003';
	END IF;
END $do$;

CREATE TABLE IF NOT EXISTS {s}distsync_v1_lock (
	name    text COLLATE "C" PRIMARY KEY,
	-- 1 plain, 2 read-write, 3 semaphore; others are left alone
	kind    smallint    NOT NULL DEFAULT 1,
	-- the one who has it alone; NULL: nobody
	owner   text COLLATE "C",
	-- how often
	count   integer     NOT NULL DEFAULT 0,
	-- given back, and nobody gets it yet
	kept    boolean     NOT NULL DEFAULT false,
	-- since it was last taken over only readers have come
	shared  boolean     NOT NULL DEFAULT false,
	-- how many permits there are, as was last said
	lim     integer     NOT NULL DEFAULT 0,
	-- number of the last acquisition that found it free
	token   bigint      NOT NULL DEFAULT 0,
	expires timestamptz NOT NULL DEFAULT 'epoch',
	-- until then somebody may want to be told of a release
	asked   timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
	autovacuum_vacuum_cost_delay = 0,
	autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);

-- What several may have of one name at a time.
CREATE TABLE IF NOT EXISTS {s}distsync_v1_part (
	name    text COLLATE "C",
	-- 1 reads, 2 waits to write, 3 stands in line, 4 has permits,
	-- 5 is a session that wants to be told
	role    smallint,
	owner   text COLLATE "C",
	-- permits; of a session: 1 if it waits, 0 if it only looks on
	n       integer     NOT NULL DEFAULT 1,
	kept    boolean     NOT NULL DEFAULT false,
	-- of one who waits to write
	since   timestamptz,
	-- in line
	place   bigint,
	-- whom to tell that its turn has come
	session text COLLATE "C",
	expires timestamptz NOT NULL,
	PRIMARY KEY (name, role, owner)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
	autovacuum_vacuum_cost_delay = 0,
	autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);

-- Helpers. Only the functions below may call them.

-- The server's time in microseconds. It isn't IMMUTABLE, since what it calls isn't: a function that
-- promises more than its body isn't put into the statements that call it, and to call it takes as
-- long as to update a row.
CREATE OR REPLACE FUNCTION {s}distsync_v1_us(t timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $f$ SELECT (extract(epoch FROM t) * 1000000)::bigint $f$;

-- What is left until then in milliseconds, at least 1.
CREATE OR REPLACE FUNCTION {s}distsync_v1_left(expires timestamptz, t timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $f$
	SELECT CASE WHEN expires IS NOT NULL
		THEN greatest(1, ceil(extract(epoch FROM expires - t) * 1000)::bigint) END
$f$;

-- The number of the advisory lock that readers share. It lasts as long as a transaction: poolers
-- are no matter.
CREATE OR REPLACE FUNCTION {s}distsync_v1_key(p_name text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $f$ SELECT hashtextextended('distsync_v1 ' || p_name, 7405) $f$;

-- Takes out what is over and nobody has locked: what is locked is guarded, or being renewed, and
-- goes on counting.
CREATE OR REPLACE FUNCTION {s}distsync_v1_prune(p_name text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
	p record;
BEGIN
	FOR p IN SELECT q.role, q.owner FROM {s}distsync_v1_part q
		WHERE q.name = p_name AND q.role <> 5 AND q.expires <= clock_timestamp()
		FOR UPDATE SKIP LOCKED
	LOOP
		DELETE FROM {s}distsync_v1_part q
			WHERE q.name = p_name AND q.role = p.role AND q.owner = p.owner;
	END LOOP;
END $f$;

-- Until when others read, or have permits; NULL: nobody does. What is over and still here is
-- guarded, or being renewed, and ends soon; or it was not over yet when prune looked. Under FOR
-- UPDATE, after prune.
CREATE OR REPLACE FUNCTION {s}distsync_v1_out(p_name text) RETURNS timestamptz LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $f$
	SELECT max(CASE WHEN p.expires > clock_timestamp() - interval '5 ms' THEN p.expires
			ELSE clock_timestamp() + interval '100 ms' END)
		FROM {s}distsync_v1_part p WHERE p.name = p_name AND p.role IN (1, 4)
$f$;

-- Whether the name holds another lock than one of the kind.
CREATE OR REPLACE FUNCTION {s}distsync_v1_foreign(p_name text, p_kind smallint) RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $f$
	SELECT coalesce((
		SELECT k.kind > 3
			OR k.kind <> p_kind
				AND (k.owner IS NOT NULL AND k.expires > clock_timestamp()
					OR EXISTS (SELECT FROM {s}distsync_v1_part p
						WHERE p.name = p_name AND p.role IN (1, 4)
							AND p.expires > clock_timestamp()))
		FROM {s}distsync_v1_lock k WHERE k.name = p_name), false)
$f$;

-- How many sessions besides that one want a lock, if there may be any.
CREATE OR REPLACE FUNCTION {s}distsync_v1_waiting(p_name text, p_session text, p_any boolean)
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $f$
	SELECT count(*) FROM {s}distsync_v1_part p WHERE p_any AND p.name = p_name AND p.role = 5
		AND p.owner <> p_session AND p.n > 0 AND p.expires > clock_timestamp()
$f$;

-- Steps. Each is a transaction of its own in READ COMMITTED, locks the row of one lock at most, and
-- then its parts. One that takes a lock over locks its row FOR UPDATE first of all, and updates it
-- in the same (sub)transaction: no EXCEPTION block, no weaker lock before. That waits for
-- transactions that are guarded by the last hold, also for those whose snapshot is older. All else
-- updates columns that no index has, which guards let pass.
-- status is, in all of them: 0 held by another, or not held; 1 done, or holds left; 2 freed;
-- 3 kept; 4 the name holds something else; 5 nobody has said how many permits there are;
-- 6 there are less; 9 nothing was done: call it again, in a new transaction. noted: somebody has
-- asked to be told of a release. tell: there is somebody to be told.

-- Acquires a plain lock. Unless p_wait nothing is done where somebody has locked the row.
CREATE OR REPLACE FUNCTION {s}distsync_v1_acquire(
	p_name text, p_owner text, p_lease bigint, p_wait boolean,
	OUT status smallint, OUT held integer, OUT num bigint, OUT remaining bigint, OUT noted boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $f$
DECLARE
	l {s}distsync_v1_lock;
	t timestamptz;
	lease interval := p_lease * interval '1 millisecond';
BEGIN
{begin}
	LOOP
		-- Locks and writes nothing.
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
		t := clock_timestamp();
		IF NOT FOUND THEN
			INSERT INTO {s}distsync_v1_lock (name, owner, count, token, expires)
				VALUES (p_name, p_owner, 1, {s}distsync_v1_us(t), t + lease)
				ON CONFLICT (name) DO NOTHING RETURNING token INTO num;
			IF FOUND THEN
				status := 1; held := 1;
				RETURN;
			END IF;
			CONTINUE;
		END IF;
		noted := l.asked > t;
		IF l.kind > 3 THEN
			status := 4;
			RETURN;
		END IF;
		IF l.owner IS NOT NULL AND l.expires > t THEN
			IF l.kind <> 1 THEN
				status := 4;
				RETURN;
			END IF;
			IF l.owner <> p_owner OR l.kept THEN
				status := 0; remaining := {s}distsync_v1_left(l.expires, t);
				RETURN;
			END IF;
			UPDATE {s}distsync_v1_lock k
				SET count = k.count + 1, expires = clock_timestamp() + lease
				WHERE k.name = p_name AND k.owner = p_owner AND NOT k.kept
					AND k.expires > clock_timestamp() AND k.kind = 1
				RETURNING k.count, k.token INTO held, num;
			IF FOUND THEN
				status := 1;
				RETURN;
			END IF;
			CONTINUE;
		END IF;
		IF l.kind <> 1 AND {s}distsync_v1_foreign(p_name, 1::smallint) THEN
			status := 4;
			RETURN;
		END IF;
		IF p_wait THEN
			SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR UPDATE;
		ELSE
			SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR UPDATE SKIP LOCKED;
			IF NOT FOUND THEN
				status := 9;
				RETURN;
			END IF;
		END IF;
		t := clock_timestamp();
		IF l.owner <> p_owner AND l.expires > t AND l.kind = 1 THEN -- it has come first
			status := 0; remaining := {s}distsync_v1_left(l.expires, t); noted := l.asked > t;
			PERFORM set_config('synchronous_commit', 'off', true); -- only the row was locked
			RETURN;
		END IF;
		CONTINUE WHEN NOT FOUND OR l.kind > 3 OR l.owner IS NOT NULL AND l.expires > t;
		IF l.kind <> 1 THEN
			PERFORM pg_advisory_xact_lock({s}distsync_v1_key(p_name)); -- readers under way
			PERFORM {s}distsync_v1_prune(p_name);
			IF {s}distsync_v1_out(p_name) IS NOT NULL THEN
				status := 4;
				RETURN;
			END IF;
			t := clock_timestamp();
		END IF;
		UPDATE {s}distsync_v1_lock k
			SET kind = 1, shared = false, owner = p_owner, count = 1, kept = false,
				expires = t + lease, token = greatest(k.token + 1, {s}distsync_v1_us(t))
			WHERE k.name = p_name RETURNING k.token INTO num;
		status := 1; held := 1;
		RETURN;
	END LOOP;
END $f$;

-- Acquires plain locks for many who ask at about the same time: those that are free and that nobody
-- has locked. A line says of the request i (from 1) that it was acquired (num), or how long another
-- has that lock. Requests of which nothing is said are to be made one by one. Only new rows are
-- waited for, and these in the order of their names.
CREATE OR REPLACE FUNCTION {s}distsync_v1_acquire_all(
	p_names text[], p_owners text[], p_leases bigint[])
RETURNS TABLE (i bigint, num bigint, remaining bigint, noted boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms'
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $f$
DECLARE
	won text[];
	t timestamptz;
BEGIN
{begin}
	SELECT array_agg(q.name) INTO won FROM (SELECT k.name FROM {s}distsync_v1_lock k
		WHERE k.name = ANY (p_names) AND k.kind = 1
			AND (k.owner IS NULL OR k.expires <= clock_timestamp()) FOR UPDATE SKIP LOCKED) q;
	t := clock_timestamp();
	RETURN QUERY UPDATE {s}distsync_v1_lock k
		SET owner = u.owner, count = 1, kept = false, shared = false,
			expires = t + u.lease * interval '1 millisecond',
			token = greatest(k.token + 1, {s}distsync_v1_us(t))
		FROM unnest(p_names, p_owners, p_leases) WITH ORDINALITY AS u (name, owner, lease, i)
		WHERE k.name = ANY (won) AND k.name = u.name
		RETURNING u.i, k.token, NULL::bigint, k.asked > t;
	IF cardinality(won) = cardinality(p_names) THEN
		RETURN;
	END IF;
	RETURN QUERY SELECT u.i, NULL::bigint, {s}distsync_v1_left(k.expires, t), k.asked > t
		FROM unnest(p_names, p_owners) WITH ORDINALITY AS u (name, owner, i)
			JOIN {s}distsync_v1_lock k ON k.name = u.name
		WHERE k.name = ANY (p_names) AND k.kind = 1 AND k.expires > t
			AND (k.owner <> u.owner OR k.kept) AND k.name <> ALL (coalesce(won, '{}'));
	RETURN QUERY WITH new AS (
		INSERT INTO {s}distsync_v1_lock AS k (name, owner, count, token, expires)
			SELECT DISTINCT ON (u.name COLLATE "C") u.name, u.owner, 1, {s}distsync_v1_us(t),
				t + u.lease * interval '1 millisecond'
			FROM unnest(p_names, p_owners, p_leases) AS u (name, owner, lease)
			WHERE NOT EXISTS (SELECT FROM {s}distsync_v1_lock x WHERE x.name = u.name)
			ORDER BY u.name COLLATE "C"
			ON CONFLICT (name) DO NOTHING RETURNING k.name, k.owner, k.token)
		SELECT min(u.i), new.token, NULL::bigint, false
			FROM new JOIN unnest(p_names, p_owners) WITH ORDINALITY AS u (name, owner, i)
				ON u.name = new.name AND u.owner = new.owner
			GROUP BY new.name, new.token;
END $f$;

-- Releases plain locks for many: those that are held once, and that nobody has locked. waiting is
-- the number of others that wait, for requests that ask for it.
CREATE OR REPLACE FUNCTION {s}distsync_v1_release_all(
	p_names text[], p_owners text[], p_session text, p_asks boolean[])
RETURNS TABLE (i bigint, tell boolean, waiting bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms'
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $f$
DECLARE
	mine text[];
BEGIN
{begin}
	SELECT array_agg(q.name) INTO mine FROM (SELECT k.name FROM {s}distsync_v1_lock k
		WHERE k.name = ANY (p_names) AND k.owner IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED) q;
	RETURN QUERY UPDATE {s}distsync_v1_lock k
		SET owner = NULL, count = 0, expires = clock_timestamp()
		FROM unnest(p_names, p_owners, p_asks) WITH ORDINALITY AS u (name, owner, ask, i)
		WHERE k.name = ANY (mine) AND k.name = u.name AND k.owner = u.owner AND k.kind = 1
			AND k.count = 1 AND NOT k.kept AND k.expires > clock_timestamp()
		RETURNING u.i, k.asked > clock_timestamp(),
			CASE WHEN NOT u.ask THEN NULL
				WHEN k.asked > clock_timestamp()
					THEN {s}distsync_v1_waiting(k.name, p_session, true)
				ELSE 0 END;
END $f$;

-- Releases a plain lock (kind 1) or a Write (2). waiting: how many others wait.
CREATE OR REPLACE FUNCTION {s}distsync_v1_release(
	p_kind smallint, p_name text, p_owner text, p_session text, p_lease bigint,
	p_keep bigint, p_ask boolean,
	OUT status smallint, OUT tell boolean, OUT waiting bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
DECLARE
	l {s}distsync_v1_lock;
	noted boolean := false;
BEGIN
{begin}
	UPDATE {s}distsync_v1_lock k SET
		count = CASE WHEN k.count > 1 THEN k.count - 1 WHEN p_keep > 0 THEN 1 ELSE 0 END,
		owner = CASE WHEN k.count > 1 OR p_keep > 0 THEN k.owner END,
		kept = k.count = 1 AND p_keep > 0,
		expires = CASE WHEN k.count = 1 THEN clock_timestamp() + p_keep * interval '1 millisecond'
			WHEN k.kind = 2
				THEN greatest(k.expires, clock_timestamp() + p_lease * interval '1 millisecond')
			ELSE clock_timestamp() + p_lease * interval '1 millisecond' END
		WHERE k.name = p_name AND k.owner = p_owner AND NOT k.kept
			AND k.expires > clock_timestamp() AND k.kind = p_kind
		RETURNING * INTO l;
	status := CASE WHEN NOT FOUND THEN 0 WHEN l.kept THEN 3 WHEN l.owner IS NULL THEN 2 ELSE 1 END;
	IF status = 0 THEN
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
		IF l.owner = p_owner AND l.kind = p_kind AND l.kept AND l.expires > clock_timestamp() THEN
			status := CASE WHEN p_keep > 0 THEN 3 ELSE 0 END;
		ELSIF {s}distsync_v1_foreign(p_name, p_kind) THEN
			status := 4;
		END IF;
	END IF;
	IF p_kind = 2 AND status <> 4 THEN -- a step that is refused changes nothing
		DELETE FROM {s}distsync_v1_part p
			WHERE p.name = p_name AND p.role = 2 AND p.owner = p_owner;
		noted := FOUND;
	END IF;
	tell := (status = 2 OR noted) AND l.asked > clock_timestamp();
	IF status <> 2 THEN
		RETURN;
	END IF;
	{unflushed}
	IF p_ask THEN
		waiting := {s}distsync_v1_waiting(p_name, p_session, tell);
	END IF;
END $f$;

-- Gives back what a reader (role 1) or an owner of permits (4) has. A part that is guarded is ended
-- and not deleted, so that it counts until the guard is over.
CREATE OR REPLACE FUNCTION {s}distsync_v1_leave(
	p_role smallint, p_name text, p_owner text, p_session text, p_n integer,
	p_keep bigint, p_ask boolean,
	OUT status smallint, OUT tell boolean, OUT waiting bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
DECLARE
	p {s}distsync_v1_part;
	alone boolean;
	ended boolean := false;
BEGIN
	IF p_role NOT IN (1, 4) THEN
		RAISE EXCEPTION 'distsync: role %', p_role USING ERRCODE = '22023';
	END IF;
{begin}
	-- A waiter that asks to be told takes the other side of this: either it is seen to have asked,
	-- or it sees that this is over.
	alone := pg_advisory_xact_lock_shared({s}distsync_v1_key(p_name))
		IS NULL; -- faster than PERFORM
	IF p_keep <= 0 THEN -- what nearly all want, in one statement
		DELETE FROM {s}distsync_v1_part q
			WHERE q.ctid = (SELECT x.ctid FROM {s}distsync_v1_part x
				WHERE x.name = p_name AND x.role = p_role AND x.owner = p_owner AND x.n = p_n
					AND NOT x.kept AND x.expires > clock_timestamp() FOR UPDATE SKIP LOCKED)
			RETURNING (SELECT k.asked > clock_timestamp()
				FROM {s}distsync_v1_lock k WHERE k.name = p_name)
			INTO tell;
		IF FOUND THEN
			status := 2;
			{unflushed}
			tell := coalesce(tell, false);
			IF p_ask THEN
				waiting := {s}distsync_v1_waiting(p_name, p_session, tell);
			END IF;
			RETURN;
		END IF;
	END IF;
	SELECT * INTO p FROM {s}distsync_v1_part q
		WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner FOR UPDATE SKIP LOCKED;
	alone := FOUND;
	IF NOT alone THEN
		SELECT * INTO p FROM {s}distsync_v1_part q
			WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner FOR NO KEY UPDATE;
	END IF;
	status := 0;
	IF NOT FOUND OR p.expires <= clock_timestamp() THEN
		IF {s}distsync_v1_foreign(p_name, CASE p_role WHEN 1 THEN 2 ELSE 3 END::smallint) THEN
			status := 4;
		END IF;
	ELSIF p.kept THEN
		status := CASE WHEN p_keep > 0 THEN 3 ELSE 0 END;
	ELSIF p.n = p_n AND p_keep > 0 THEN
		UPDATE {s}distsync_v1_part q
			SET kept = true, expires = clock_timestamp() + p_keep * interval '1 millisecond'
			WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner;
		status := 3;
	ELSE
		ended := true;
		IF alone THEN
			DELETE FROM {s}distsync_v1_part q
				WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner;
		ELSE
			UPDATE {s}distsync_v1_part q SET expires = clock_timestamp()
				WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner;
		END IF;
		status := CASE WHEN p.n = p_n THEN 2 ELSE 0 END;
	END IF;
	tell := ended AND EXISTS (SELECT FROM {s}distsync_v1_lock k
		WHERE k.name = p_name AND k.asked > clock_timestamp());
	IF ended THEN
		{unflushed}
	END IF;
	IF p_ask AND status = 2 THEN
		waiting := {s}distsync_v1_waiting(p_name, p_session, tell);
	END IF;
END $f$;

-- Renews plain locks (kind 1) and Writes (2). It returns indexes of the arrays, from 1, of those
-- that are held, or NULL if all are; the others are to be renewed one by one. With p_skip it leaves
-- out what somebody has locked just now. Without that it is faster by a third, and fails soon where
-- somebody has.
CREATE OR REPLACE FUNCTION {s}distsync_v1_renew_all(
	p_names text[], p_kinds smallint[], p_owners text[], p_leases bigint[], p_skip boolean)
RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $f$
DECLARE
	mine text[] := p_names;
	renewed bigint[];
BEGIN
{begin}
	IF p_skip THEN
		SELECT array_agg(q.name) INTO mine FROM (SELECT k.name FROM {s}distsync_v1_lock k
			WHERE k.name = ANY (p_names) AND k.owner IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED) q;
	END IF;
	WITH done AS (UPDATE {s}distsync_v1_lock k SET expires = CASE WHEN k.kind = 2
			THEN greatest(k.expires, clock_timestamp() + u.lease * interval '1 millisecond')
			ELSE clock_timestamp() + u.lease * interval '1 millisecond' END
		FROM unnest(p_names, p_kinds, p_owners, p_leases)
			WITH ORDINALITY AS u (name, kind, owner, lease, i)
		WHERE k.name = ANY (mine) AND k.name = u.name AND k.owner = u.owner AND k.kind = u.kind
			AND NOT k.kept AND k.expires > clock_timestamp()
		RETURNING u.i)
		SELECT coalesce(array_agg(done.i), '{}') INTO renewed FROM done;
	RETURN CASE WHEN cardinality(renewed) < cardinality(p_names) THEN renewed END;
END $f$;

-- Renews one.
CREATE OR REPLACE FUNCTION {s}distsync_v1_renew(
	p_kind smallint, p_name text, p_owner text, p_lease bigint, OUT status smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
BEGIN
{begin}
	UPDATE {s}distsync_v1_lock k SET expires = CASE WHEN k.kind = 2
			THEN greatest(k.expires, clock_timestamp() + p_lease * interval '1 millisecond')
			ELSE clock_timestamp() + p_lease * interval '1 millisecond' END
		WHERE k.name = p_name AND k.owner = p_owner AND k.kind = p_kind
			AND NOT k.kept AND k.expires > clock_timestamp();
	status := CASE WHEN FOUND THEN 1 WHEN {s}distsync_v1_foreign(p_name, p_kind) THEN 4 ELSE 0 END;
END $f$;

-- Renews what readers (role 1) and owners of permits (4) have: all parts that nobody has locked
-- just now.
CREATE OR REPLACE FUNCTION {s}distsync_v1_renew_parts(
	p_names text[], p_roles smallint[], p_owners text[], p_ns integer[], p_leases bigint[])
RETURNS TABLE (i bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $f$
DECLARE
	k record;
BEGIN
{begin}
	FOR k IN SELECT * FROM unnest(p_names, p_roles, p_owners, p_ns, p_leases)
		WITH ORDINALITY AS u (name, role, owner, n, lease, i)
	LOOP
		PERFORM FROM {s}distsync_v1_part p
			WHERE p.name = k.name AND p.role = k.role AND p.role IN (1, 4) AND p.owner = k.owner
				AND p.n = k.n FOR NO KEY UPDATE SKIP LOCKED;
		CONTINUE WHEN NOT FOUND;
		UPDATE {s}distsync_v1_part p SET expires = CASE WHEN p.role = 1
				THEN greatest(p.expires, clock_timestamp() + k.lease * interval '1 millisecond')
				ELSE clock_timestamp() + k.lease * interval '1 millisecond' END
			WHERE p.name = k.name AND p.role = k.role AND p.owner = k.owner
				AND NOT p.kept AND p.expires > clock_timestamp();
		CONTINUE WHEN NOT FOUND;
		i := k.i;
		RETURN NEXT;
	END LOOP;
END $f$;

-- Renews one part. Permits of another number are given back.
CREATE OR REPLACE FUNCTION {s}distsync_v1_renew_part(
	p_role smallint, p_name text, p_owner text, p_n integer, p_lease bigint,
	OUT status smallint, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
DECLARE
	p {s}distsync_v1_part;
BEGIN
	IF p_role NOT IN (1, 4) THEN
		RAISE EXCEPTION 'distsync: role %', p_role USING ERRCODE = '22023';
	END IF;
{begin}
	-- As distsync_v1_leave.
	tell := pg_advisory_xact_lock_shared({s}distsync_v1_key(p_name)) IS NULL;
	tell := false;
	SELECT * INTO p FROM {s}distsync_v1_part q
		WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner FOR NO KEY UPDATE;
	IF NOT FOUND OR p.expires <= clock_timestamp() OR p.kept THEN
		status := CASE
			WHEN {s}distsync_v1_foreign(p_name, CASE p_role WHEN 1 THEN 2 ELSE 3 END::smallint)
			THEN 4 ELSE 0 END;
	ELSIF p.n <> p_n THEN
		UPDATE {s}distsync_v1_part q SET expires = clock_timestamp()
			WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner;
		tell := EXISTS (SELECT FROM {s}distsync_v1_lock k
			WHERE k.name = p_name AND k.asked > clock_timestamp());
		status := 0;
	ELSE
		UPDATE {s}distsync_v1_part q SET expires = CASE WHEN p_role = 1
				THEN greatest(q.expires, clock_timestamp() + p_lease * interval '1 millisecond')
				ELSE clock_timestamp() + p_lease * interval '1 millisecond' END
			WHERE q.name = p_name AND q.role = p_role AND q.owner = p_owner;
		status := 1;
	END IF;
END $f$;

-- Frees a plain lock (kind 1), a Write (2) and what its owner reads, all that is read (p_role 1) or
-- all permits (4).
CREATE OR REPLACE FUNCTION {s}distsync_v1_force(
	p_kind smallint, p_role smallint, p_name text, OUT status smallint, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
DECLARE
	l {s}distsync_v1_lock;
	p record;
	ended boolean := false;
BEGIN
{begin}
	IF p_role = 0 THEN
		UPDATE {s}distsync_v1_lock k
			SET owner = NULL, count = 0, kept = false, expires = clock_timestamp()
			WHERE k.name = p_name AND k.owner IS NOT NULL AND k.expires > clock_timestamp()
				AND k.kind = p_kind
			RETURNING * INTO l;
		ended := FOUND;
	ELSE
		PERFORM pg_advisory_xact_lock_shared({s}distsync_v1_key(p_name)); -- as distsync_v1_leave
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
	END IF;
	IF l.kind > 1 AND (p_role = 0) = ended
		AND (p_role <> 1 OR l.owner IS NULL OR l.expires <= clock_timestamp()) THEN
		FOR p IN SELECT q.role, q.owner FROM {s}distsync_v1_part q
			WHERE q.name = p_name AND q.role = CASE p_role WHEN 0 THEN 1 ELSE p_role END
				AND q.expires > clock_timestamp() FOR UPDATE SKIP LOCKED
		LOOP
			DELETE FROM {s}distsync_v1_part q
				WHERE q.name = p_name AND q.role = p.role AND q.owner = p.owner;
			ended := true;
		END LOOP;
		UPDATE {s}distsync_v1_part q SET expires = clock_timestamp()
			WHERE q.name = p_name AND q.role = CASE p_role WHEN 0 THEN 1 ELSE p_role END
				AND q.expires > clock_timestamp();
		ended := ended OR FOUND;
	END IF;
	status := CASE WHEN ended THEN 1 WHEN {s}distsync_v1_foreign(p_name, p_kind) THEN 4 ELSE 0 END;
	tell := ended AND EXISTS (SELECT FROM {s}distsync_v1_lock k
		WHERE k.name = p_name AND k.asked > clock_timestamp());
END $f$;

-- Reads.
CREATE OR REPLACE FUNCTION {s}distsync_v1_read(
	p_name text, p_owner text, p_lease bigint, p_waited bigint,
	OUT status smallint, OUT remaining bigint, OUT noted boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $f$
DECLARE
	l record;
	t timestamptz := clock_timestamp();
	began timestamptz := t - p_waited * interval '1 millisecond'; -- to wait
	lease interval := p_lease * interval '1 millisecond';
	own boolean;
	short boolean;
	reads boolean;
	behind timestamptz;
	first bigint;
BEGIN
{begin}
	FOR try IN 1 .. 2 LOOP
		SELECT k.kind, k.owner, k.kept, k.shared, k.expires, k.asked
			INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name; -- locks nothing
		EXIT WHEN FOUND;
		IF try = 2 THEN
			status := 9;
			RETURN;
		END IF;
		INSERT INTO {s}distsync_v1_lock (name, kind) VALUES (p_name, 2)
			ON CONFLICT (name) DO NOTHING;
	END LOOP;
	own := coalesce(l.owner = p_owner AND NOT l.kept AND l.expires > t, false);
	short := l.kind = 2 AND (l.shared OR own);
	IF short THEN
		-- The short way: no lock of the row, which would make multixacts and let writers starve,
		-- but one in memory that is shared, and that those who take the row over wait for. It
		-- doesn't go on to want the row: two that did would wait for each other.
		-- An assignment is faster than PERFORM.
		noted := pg_advisory_xact_lock_shared({s}distsync_v1_key(p_name)) IS NULL;
		INSERT INTO {s}distsync_v1_part AS p (name, role, owner, expires) -- a new snapshot
			SELECT p_name, 1, p_owner, clock_timestamp() + lease FROM {s}distsync_v1_lock k
			WHERE k.name = p_name AND k.kind = 2
				AND (k.owner = p_owner AND NOT k.kept AND k.expires > clock_timestamp()
					OR k.shared AND (k.owner IS NULL OR k.expires <= clock_timestamp())
						AND NOT EXISTS (SELECT FROM {s}distsync_v1_part w
							WHERE w.name = p_name AND w.role = 2
								AND w.expires > clock_timestamp() AND w.since < began))
			ON CONFLICT (name, role, owner)
				DO UPDATE SET expires = greatest(p.expires, excluded.expires);
		IF FOUND THEN
			status := 1;
			RETURN;
		END IF;
	END IF;
	SELECT max(p.expires) INTO behind FROM {s}distsync_v1_part p
		WHERE p.name = p_name AND p.role = 2 AND p.expires > clock_timestamp() AND p.since < began;
	reads := EXISTS (SELECT FROM {s}distsync_v1_part p WHERE p.name = p_name AND p.role = 1
		AND p.owner = p_owner AND p.expires > clock_timestamp());
	IF reads THEN
		UPDATE {s}distsync_v1_part p SET expires = greatest(p.expires, clock_timestamp() + lease)
			WHERE p.name = p_name AND p.role = 1 AND p.owner = p_owner
				AND p.expires > clock_timestamp();
		IF FOUND THEN
			status := 1;
			RETURN;
		END IF;
	END IF;
	t := clock_timestamp();
	noted := l.asked > t;
	IF l.kind > 3 OR l.kind <> 2 AND (l.owner IS NOT NULL AND l.expires > t
			OR {s}distsync_v1_foreign(p_name, 2::smallint)) THEN
		status := 4;
		RETURN;
	END IF;
	own := coalesce(l.owner = p_owner AND NOT l.kept AND l.expires > t, false);
	IF NOT own THEN
		IF l.owner IS NOT NULL AND l.expires > t THEN
			status := 0; remaining := {s}distsync_v1_left(l.expires, t);
			RETURN;
		END IF;
		IF behind > t THEN
			status := 0; remaining := {s}distsync_v1_left(behind, t);
			RETURN;
		END IF;
	END IF;
	IF short THEN -- things have changed since
		status := 9;
		RETURN;
	ELSE
		-- The first reader after somebody who was alone takes the lock over, and waits for that
		-- one's guards. Others that come with it wait for it, all at once, and not in line for the
		-- row: then they go the short way.
		first := hashtextextended('distsync_v1 ' || p_name, 7406); -- which is no name's key
		IF NOT pg_try_advisory_xact_lock(first) THEN
			PERFORM pg_advisory_xact_lock_shared(first);
			status := 9;
			RETURN;
		END IF;
		SELECT k.kind, k.owner, k.shared, k.expires INTO l FROM {s}distsync_v1_lock k
			WHERE k.name = p_name FOR UPDATE;
		IF NOT FOUND OR l.shared AND l.kind = 2
			OR l.owner IS NOT NULL AND l.expires > clock_timestamp() OR l.kind > 3 THEN
			status := 9;
			PERFORM set_config('synchronous_commit', 'off', true); -- only the row was locked
			RETURN;
		END IF;
		IF l.kind <> 2 THEN
			PERFORM pg_advisory_xact_lock({s}distsync_v1_key(p_name));
			PERFORM {s}distsync_v1_prune(p_name);
			IF {s}distsync_v1_out(p_name) IS NOT NULL THEN
				status := 4;
				RETURN;
			END IF;
		END IF;
		t := clock_timestamp();
		UPDATE {s}distsync_v1_lock k
			SET kind = 2, shared = true, owner = NULL, count = 0, kept = false, expires = t,
				token = greatest(k.token + 1, {s}distsync_v1_us(t))
			WHERE k.name = p_name;
	END IF;
	INSERT INTO {s}distsync_v1_part AS p (name, role, owner, expires)
		VALUES (p_name, 1, p_owner, clock_timestamp() + lease)
		ON CONFLICT (name, role, owner)
			DO UPDATE SET expires = greatest(p.expires, excluded.expires);
	status := 1;
END $f$;

-- Writes. p_place > 0: a note is left if it is held.
CREATE OR REPLACE FUNCTION {s}distsync_v1_write(
	p_name text, p_owner text, p_lease bigint, p_waited bigint, p_place bigint,
	OUT status smallint, OUT held integer, OUT num bigint, OUT remaining bigint, OUT noted boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $f$
DECLARE
	l {s}distsync_v1_lock;
	t timestamptz;
	u timestamptz;
	began timestamptz := clock_timestamp() - p_waited * interval '1 millisecond'; -- to wait
	lease interval := p_lease * interval '1 millisecond';
	created boolean := false;
BEGIN
{begin}
	SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
	IF NOT FOUND THEN
		INSERT INTO {s}distsync_v1_lock (name, kind) VALUES (p_name, 2)
			ON CONFLICT (name) DO NOTHING;
		created := true;
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
		IF NOT FOUND THEN
			status := 9;
			RETURN;
		END IF;
	END IF;
	t := clock_timestamp();
	noted := l.asked > t;
	IF l.kind > 3 OR l.kind <> 2 AND (l.owner IS NOT NULL AND l.expires > t
			OR {s}distsync_v1_foreign(p_name, 2::smallint)) THEN
		status := 4;
		RETURN;
	END IF;
	IF l.owner = p_owner AND NOT l.kept AND l.expires > t THEN
		UPDATE {s}distsync_v1_lock k
			SET count = k.count + 1, expires = greatest(k.expires, clock_timestamp() + lease)
			WHERE k.name = p_name AND k.owner = p_owner AND NOT k.kept
				AND k.expires > clock_timestamp() AND k.kind = 2
			RETURNING k.count, k.token INTO held, num;
		status := CASE WHEN FOUND THEN 1 ELSE 9 END;
		RETURN;
	END IF;
	SELECT max(p.expires) INTO u FROM {s}distsync_v1_part p
		WHERE p.name = p_name AND p.role = 1 AND p.expires > t;
	u := greatest(u, CASE WHEN l.owner IS NOT NULL AND l.expires > t THEN l.expires END);
	IF u IS NULL THEN
		-- Waits for guards of a Write.
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR UPDATE;
		IF NOT FOUND OR l.kind > 3 OR l.owner IS NOT NULL AND l.expires > clock_timestamp() THEN
			status := 9;
			PERFORM set_config('synchronous_commit', 'off', true); -- the row was locked, or made
			RETURN;
		END IF;
		-- Readers under way; those who come later stand behind.
		PERFORM pg_advisory_xact_lock({s}distsync_v1_key(p_name));
		PERFORM {s}distsync_v1_prune(p_name);
		u := {s}distsync_v1_out(p_name); -- a new snapshot: what was read before is here
		IF u IS NULL THEN
			t := clock_timestamp();
			UPDATE {s}distsync_v1_lock k
				SET kind = 2, shared = false, owner = p_owner, count = 1, kept = false,
					expires = t + lease, token = greatest(k.token + 1, {s}distsync_v1_us(t))
				WHERE k.name = p_name RETURNING k.token INTO num;
			DELETE FROM {s}distsync_v1_part p
				WHERE p.name = p_name AND p.role = 2 AND p.owner = p_owner;
			status := 1; held := 1;
			RETURN;
		END IF;
	END IF;
	IF NOT created THEN
		-- A note that is lost with the server costs a turn.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	IF p_place > 0 AND NOT coalesce(l.kept AND l.owner = p_owner AND l.expires > t, false) THEN
		t := clock_timestamp();
		INSERT INTO {s}distsync_v1_part AS p (name, role, owner, since, expires)
			VALUES (p_name, 2, p_owner, began, t + p_place * interval '1 millisecond')
			ON CONFLICT (name, role, owner) DO UPDATE SET expires = excluded.expires,
				-- One that is over is none.
				since = CASE WHEN p.expires > t THEN least(p.since, excluded.since)
					ELSE excluded.since END;
	END IF;
	status := 0; remaining := {s}distsync_v1_left(u, clock_timestamp());
END $f$;

-- Acquires permits.
CREATE OR REPLACE FUNCTION {s}distsync_v1_permits(
	p_name text, p_owner text, p_n integer, p_limit integer, p_lease bigint,
	OUT status smallint, OUT remaining bigint, OUT noted boolean, OUT tell boolean,
	OUT most integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $f$
DECLARE
	l {s}distsync_v1_lock;
	p {s}distsync_v1_part;
	t timestamptz;
	used bigint;
	first timestamptz;
	own boolean;
	live boolean;
	was smallint;
	stirs boolean := false;
	left_over boolean;
BEGIN
{begin}
	tell := false;
	SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
	t := clock_timestamp();
	noted := l.asked > t;
	IF l.kind > 3 OR l.kind <> 3 AND (l.owner IS NOT NULL AND l.expires > t
			OR {s}distsync_v1_foreign(p_name, 3::smallint)) THEN
		status := 4;
		RETURN;
	END IF;
	SELECT coalesce(sum(q.n), 0), min(q.expires), coalesce(bool_or(q.owner = p_owner), false),
			count(*) > 0
		INTO used, first, own, live
		FROM {s}distsync_v1_part q WHERE q.name = p_name AND q.role = 4 AND q.expires > t;
	IF live AND l.kind IS DISTINCT FROM 3 THEN
		-- It has become a semaphore since, and l.lim isn't its limit.
		status := 9;
		RETURN;
	END IF;
	most := CASE WHEN p_limit > 0 THEN p_limit WHEN live THEN l.lim ELSE 0 END;
	IF most = 0 THEN
		status := 5;
		RETURN;
	ELSIF p_n > most THEN
		status := 6;
		RETURN;
	ELSIF NOT own AND p_n > most - used THEN
		status := 0; remaining := {s}distsync_v1_left(first, t);
		RETURN;
	END IF;
	IF l.kind IS NULL THEN
		INSERT INTO {s}distsync_v1_lock (name, kind) VALUES (p_name, 3)
			ON CONFLICT (name) DO NOTHING;
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
		IF NOT FOUND THEN
			status := 9;
			RETURN;
		END IF;
	END IF;
	was := l.kind;
	IF was = 3 THEN
		-- Guards are at the parts.
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR NO KEY UPDATE;
	ELSE
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR UPDATE;
		PERFORM pg_advisory_xact_lock({s}distsync_v1_key(p_name));
	END IF;
	PERFORM {s}distsync_v1_prune(p_name);
	t := clock_timestamp();
	IF l.kind IS DISTINCT FROM was OR l.owner IS NOT NULL AND l.expires > t
		OR EXISTS (SELECT FROM {s}distsync_v1_part q WHERE q.name = p_name AND q.role = 1) THEN
		status := 9;
		RETURN;
	END IF;
	IF p_limit <= 0 AND l.lim > 0 THEN
		most := l.lim; -- another limit may have been said since
	END IF;
	SELECT * INTO p FROM {s}distsync_v1_part q
		WHERE q.name = p_name AND q.role = 4 AND q.owner = p_owner FOR NO KEY UPDATE;
	IF FOUND AND NOT p.kept AND p.expires > t AND p.n <> p_n THEN -- of another number: given back
		UPDATE {s}distsync_v1_part q SET expires = t
			WHERE q.name = p_name AND q.role = 4 AND q.owner = p_owner;
		PERFORM {s}distsync_v1_prune(p_name);
		stirs := true;
	END IF;
	own := coalesce(p.n = p_n AND NOT p.kept AND p.expires > t, false);
	-- All that are left count, whatever their time: what is over and still here is guarded, or
	-- being renewed.
	SELECT coalesce(sum(q.n), 0), min(q.expires), count(*) > 0,
			coalesce(bool_or(q.owner = p_owner), false)
		INTO used, first, live, left_over
		FROM {s}distsync_v1_part q WHERE q.name = p_name AND q.role = 4;
	IF NOT own AND (p_n > most - used OR left_over) THEN
		status := 0;
		-- Guarded: soon.
		remaining := CASE WHEN first > t - interval '5 ms' THEN {s}distsync_v1_left(first, t)
			ELSE 100 END;
		tell := stirs AND l.asked > t;
		RETURN;
	END IF;
	tell := (stirs OR live AND most > l.lim) AND l.asked > t;
	IF l.kind <> 3 THEN
		UPDATE {s}distsync_v1_lock k
			SET kind = 3, shared = false, owner = NULL, count = 0, kept = false, expires = t,
				lim = most, token = greatest(k.token + 1, {s}distsync_v1_us(t))
			WHERE k.name = p_name;
	ELSIF l.lim <> most THEN
		UPDATE {s}distsync_v1_lock k SET lim = most WHERE k.name = p_name;
	END IF;
	INSERT INTO {s}distsync_v1_part AS q (name, role, owner, n, expires)
		VALUES (p_name, 4, p_owner, p_n, clock_timestamp() + p_lease * interval '1 millisecond')
		ON CONFLICT (name, role, owner) DO UPDATE SET expires = excluded.expires;
	status := 1;
END $f$;

-- All steps of fair locks. p_do: 1 acquire, 2 release, 3 keep places, 4 see to the line, 5 force.
-- num is the number of the last acquisition; whoever is told of a grant believes it if its number
-- is larger than in the last answer. granted: whom to tell; stirs: a session that is to look again.
CREATE OR REPLACE FUNCTION {s}distsync_v1_fair(
	p_do smallint, p_name text, p_owners text[], p_session text, p_lease bigint,
	p_place bigint, p_again boolean, p_keep bigint, p_weak boolean,
	OUT status smallint, OUT held integer, OUT holder text, OUT remaining bigint, OUT num bigint,
	OUT granted_owner text, OUT granted_session text, OUT stirs text, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
DECLARE
	l {s}distsync_v1_lock;
	old {s}distsync_v1_lock;
	t timestamptz;
	me text := p_owners[1];
	may boolean;
	first record;
	freed boolean := false;
	lowest bigint;
	lease interval := p_lease * interval '1 millisecond';
BEGIN
{begin}
	tell := false;
	status := 0;
	IF p_do = 1 AND p_place = 0 THEN -- a try that fails writes nothing
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name;
		t := clock_timestamp();
		IF l.kind = 1 AND l.owner IS NOT NULL AND l.expires > t AND (l.owner <> me OR l.kept) THEN
			num := l.token; remaining := {s}distsync_v1_left(l.expires, t);
			RETURN;
		END IF;
	END IF;
	IF p_do IN (1, 3) AND NOT EXISTS (SELECT FROM {s}distsync_v1_lock k WHERE k.name = p_name) THEN
		INSERT INTO {s}distsync_v1_lock (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
	END IF;
	-- Only with FOR UPDATE as the first lock may it be given away. Where that can't be had, since
	-- somebody else is at it or a transaction is guarded, the line is kept, and that is all.
	may := false;
	IF NOT p_weak THEN
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR UPDATE SKIP LOCKED;
		may := FOUND;
	END IF;
	IF NOT may THEN
		SELECT * INTO l FROM {s}distsync_v1_lock k WHERE k.name = p_name FOR NO KEY UPDATE;
		IF NOT FOUND THEN
			status := CASE WHEN p_do IN (1, 3) THEN 9 ELSE 0 END;
			RETURN;
		END IF;
	END IF;
	IF l.kind > 3 THEN
		status := 4;
		RETURN;
	END IF;
	IF l.kind <> 1 THEN
		IF {s}distsync_v1_foreign(p_name, 1::smallint) THEN
			status := 4;
			RETURN;
		ELSIF NOT may THEN
			status := 9;
			RETURN;
		END IF;
		PERFORM pg_advisory_xact_lock({s}distsync_v1_key(p_name));
	END IF;
	PERFORM {s}distsync_v1_prune(p_name);
	IF l.kind <> 1 AND {s}distsync_v1_out(p_name) IS NOT NULL THEN
		status := 4;
		RETURN;
	END IF;
	old := l;
	t := clock_timestamp();
	IF l.owner IS NOT NULL AND l.expires <= t THEN
		l.owner := NULL; l.count := 0; l.kept := false; l.expires := t;
	END IF;
	IF p_do = 2 THEN
		IF l.owner = me AND NOT l.kept THEN
			IF l.count > 1 THEN
				l.count := l.count - 1; l.expires := t + lease;
				status := 1;
			ELSIF p_keep > 0 THEN
				l.kept := true; l.expires := t + p_keep * interval '1 millisecond';
				status := 3;
			ELSE
				l.owner := NULL; l.count := 0; l.expires := t;
				status := 2; freed := true;
			END IF;
		ELSE
			DELETE FROM {s}distsync_v1_part p WHERE p.name = p_name AND p.role = 3 AND p.owner = me;
			IF l.owner = me AND p_keep > 0 THEN
				status := 3;
			END IF;
		END IF;
	ELSIF p_do = 5 THEN
		IF l.owner IS NOT NULL THEN
			l.owner := NULL; l.count := 0; l.kept := false; l.expires := t;
			status := 1; freed := true;
		END IF;
	ELSIF p_do = 1 THEN
		IF l.owner = me AND NOT l.kept THEN
			IF p_again THEN
				l.count := l.count + 1; l.expires := t + lease;
			ELSE
				l.expires := greatest(l.expires, t + lease);
			END IF;
			status := 1; held := l.count;
		ELSIF l.owner IS NULL AND may AND NOT EXISTS (SELECT FROM {s}distsync_v1_part p
			WHERE p.name = p_name AND p.role = 3 AND p.owner <> me AND p.expires > t
				AND p.place < coalesce((SELECT q.place FROM {s}distsync_v1_part q
					WHERE q.name = p_name AND q.role = 3 AND q.owner = me AND q.expires > t),
					9223372036854775807)) THEN
			l.owner := me; l.count := 1; l.kept := false; l.expires := t + lease;
			l.token := greatest(l.token + 1, {s}distsync_v1_us(t));
			status := 1; held := 1;
			DELETE FROM {s}distsync_v1_part p WHERE p.name = p_name AND p.role = 3 AND p.owner = me;
		ELSIF p_place > 0 AND NOT coalesce(l.owner = me AND l.kept, false) THEN
			INSERT INTO {s}distsync_v1_part AS p (name, role, owner, session, place, expires)
				SELECT p_name, 3, me, p_session, coalesce(max(q.place), 0) + 1,
					t + p_place * interval '1 millisecond'
				FROM {s}distsync_v1_part q WHERE q.name = p_name AND q.role = 3
				ON CONFLICT (name, role, owner) DO UPDATE
					SET session = excluded.session, expires = greatest(p.expires, excluded.expires);
		END IF;
	ELSIF p_do = 3 THEN
		SELECT coalesce(min(p.place), 0) INTO lowest
			FROM {s}distsync_v1_part p WHERE p.name = p_name AND p.role = 3;
		FOR k IN 1 .. cardinality(p_owners) LOOP
			CONTINUE WHEN l.owner = p_owners[k] AND NOT l.kept;
			INSERT INTO {s}distsync_v1_part AS p (name, role, owner, session, place, expires)
				VALUES (p_name, 3, p_owners[k], p_session, lowest - 1 - cardinality(p_owners) + k,
					t + p_place * interval '1 millisecond')
				ON CONFLICT (name, role, owner) DO UPDATE
					SET session = excluded.session, expires = excluded.expires;
		END LOOP;
	END IF;
	IF l.owner IS NULL THEN
		SELECT p.owner, p.session INTO first FROM {s}distsync_v1_part p
			WHERE p.name = p_name AND p.role = 3 AND p.expires > t ORDER BY p.place LIMIT 1;
		IF NOT may AND NOT p_weak AND (FOUND OR p_do = 1) THEN
			-- It may be that nobody is at it any more; nothing of the row was written so far.
			status := 9;
			RETURN;
		ELSIF FOUND AND may THEN
			DELETE FROM {s}distsync_v1_part p
				WHERE p.name = p_name AND p.role = 3 AND p.owner = first.owner;
			granted_owner := first.owner; granted_session := first.session;
			l.owner := first.owner; l.count := 1; l.kept := false;
			l.expires := t + {grant} * interval '1 millisecond';
			l.token := greatest(l.token + 1, {s}distsync_v1_us(t));
		ELSIF FOUND AND freed THEN
			stirs := first.session;
		END IF;
		tell := freed AND l.owner IS NULL AND l.asked > t;
	END IF;
	IF (l.owner, l.count, l.kept, l.expires, l.token)
		IS DISTINCT FROM (old.owner, old.count, old.kept, old.expires, old.token) THEN
		UPDATE {s}distsync_v1_lock k
			SET kind = 1, shared = false, owner = l.owner, count = l.count, kept = l.kept,
				expires = l.expires, token = l.token
			WHERE k.name = p_name;
	ELSE
		-- A place that is lost with the server is made again.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	IF l.owner = ANY (p_owners) AND NOT l.kept THEN
		holder := l.owner;
	END IF;
	num := l.token;
	IF p_do = 2 AND status = 2 AND granted_owner IS NULL THEN -- a grant is an acquisition
		{unflushed}
	END IF;
	-- Free, but guarded: soon.
	remaining := CASE WHEN l.owner IS NULL THEN 100 ELSE {s}distsync_v1_left(l.expires, t) END;
END $f$;

-- What a name holds, in lines: one of role 0 for the lock itself, and one for each who reads (1),
-- stands in line (3) or has permits (4), at most p_most of each; ahead says how many there are of
-- that role. Nothing is over.
CREATE OR REPLACE FUNCTION {s}distsync_v1_look(p_name text, p_most bigint)
RETURNS TABLE (role smallint, kind smallint, owner text, n integer, kept boolean, remaining bigint,
	lim integer, ahead bigint, nth bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
	SELECT 0::smallint, k.kind,
		CASE WHEN k.expires > clock_timestamp() OR k.kind > 3 THEN k.owner END, k.count, k.kept,
		{s}distsync_v1_left(k.expires, clock_timestamp()), k.lim, 1::bigint, 1::bigint
	FROM {s}distsync_v1_lock k WHERE k.name = p_name
	UNION ALL
	SELECT q.role, 0::smallint, q.owner, q.n, q.kept, q.remaining, 0, q.ahead, q.nth
	FROM (
		SELECT p.role, p.owner, p.n, p.kept,
			{s}distsync_v1_left(p.expires, clock_timestamp()) AS remaining,
			count(*) OVER (PARTITION BY p.role) AS ahead,
			row_number() OVER (PARTITION BY p.role ORDER BY p.place, p.owner) AS nth
		FROM {s}distsync_v1_part p
		WHERE p.name = p_name AND p.role IN (1, 3, 4) AND p.expires > clock_timestamp()) q
	WHERE q.nth <= p_most
	ORDER BY 1, 9
$f$;

-- What a name holds for one who asks for a kind: owner and the like of one who has it alone; until
-- when anybody reads or has permits, how many there are in all, and of the owner who asks.
CREATE OR REPLACE FUNCTION {s}distsync_v1_see(p_name text, p_owner text)
RETURNS TABLE (kind smallint, owner text, count integer, kept boolean, remaining bigint,
	lim integer, parts bigint, taken bigint, mine bigint, last bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
	SELECT k.kind, CASE WHEN k.expires > clock_timestamp() OR k.kind > 3 THEN k.owner END,
		k.count, k.kept, {s}distsync_v1_left(k.expires, clock_timestamp()), k.lim, q.*
	FROM {s}distsync_v1_lock k, LATERAL (
		SELECT count(*), coalesce(sum(p.n), 0),
			coalesce(sum(p.n) FILTER (WHERE p.owner = p_owner AND NOT p.kept), 0),
			coalesce({s}distsync_v1_left(max(p.expires), clock_timestamp()), 0)
		FROM {s}distsync_v1_part p
		WHERE k.kind > 1 AND p.name = p_name AND p.role IN (1, 4)
			AND p.expires > clock_timestamp()) q
	WHERE k.name = p_name
$f$;

-- The next p_limit names in their order, and whether anybody has these locks.
CREATE OR REPLACE FUNCTION {s}distsync_v1_list(p_from text, p_after text, p_limit bigint)
RETURNS TABLE (name text, held boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
	SELECT k.name, k.kind <= 3
		AND (k.owner IS NOT NULL AND k.expires > clock_timestamp()
			OR k.kind > 1 AND EXISTS (SELECT FROM {s}distsync_v1_part p
				WHERE p.name = k.name AND p.role IN (1, 4) AND p.expires > clock_timestamp()))
	FROM {s}distsync_v1_lock k
	WHERE k.name >= p_from AND k.name > p_after ORDER BY k.name LIMIT p_limit
$f$;

-- A session wants to be told of the release of some names for five minutes, or no longer (n -1).
-- The row says that there may be somebody, and is written at most every five minutes; a release
-- looks for parts when it has been committed. To ask again in time writes nothing.
CREATE OR REPLACE FUNCTION {s}distsync_v1_ask(p_names text[], p_waits integer[], p_session text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
DECLARE
	u record;
	t timestamptz;
BEGIN
	IF p_session !~ '^[a-z0-9]{20,32}$' OR cardinality(p_names) > 1000 THEN
		RAISE EXCEPTION 'distsync: session' USING ERRCODE = '22023';
	END IF;
	FOR u IN SELECT v.name, v.n FROM unnest(p_names, p_waits) AS v (name, n)
		ORDER BY v.name COLLATE "C"
	LOOP
		t := clock_timestamp();
		IF u.n < 0 THEN
			DELETE FROM {s}distsync_v1_part p
				WHERE p.name = u.name AND p.role = 5 AND p.owner = p_session;
			CONTINUE;
		END IF;
		CONTINUE WHEN EXISTS (SELECT FROM {s}distsync_v1_part p
				WHERE p.name = u.name AND p.role = 5 AND p.owner = p_session AND p.n = u.n
					AND p.expires > t + interval '2 min')
			AND EXISTS (SELECT FROM {s}distsync_v1_lock k
				WHERE k.name = u.name AND k.asked > t + interval '2 min');
		IF NOT EXISTS (SELECT FROM {s}distsync_v1_lock k
			WHERE k.name = u.name AND k.asked >= t + interval '5 min') THEN
			INSERT INTO {s}distsync_v1_lock AS k (name, asked)
				VALUES (u.name, t + interval '10 min')
				ON CONFLICT (name) DO UPDATE SET asked = greatest(k.asked, excluded.asked)
					WHERE k.kind <= 3;
			-- Steps that give a part back lock no row. Those under way may have seen nobody ask:
			-- they are over now, and whoever asks looks again.
			PERFORM pg_advisory_xact_lock({s}distsync_v1_key(u.name));
		END IF;
		INSERT INTO {s}distsync_v1_part AS p (name, role, owner, n, expires)
			VALUES (u.name, 5, p_session, u.n, t + interval '5 min')
			ON CONFLICT (name, role, owner)
				DO UPDATE SET n = excluded.n, expires = excluded.expires;
	END LOOP;
END $f$;

-- Tells those who have asked, after the commit of what there is to tell, in a transaction of its
-- own: within the step all commits of the cluster would stand in line, and a queue that is full
-- would undo the step. It waits for no flush, though reading may tidy up a page, which is logged.
-- p_how: r, nobody is told while somebody reads; o, all who wait are told.
CREATE OR REPLACE FUNCTION {s}distsync_v1_tell(p_name text, p_how text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	{unflushed}
	IF p_how = 'r' AND EXISTS (SELECT FROM {s}distsync_v1_part p
		WHERE p.name = p_name AND p.role = 1 AND p.expires > clock_timestamp()) THEN
		RETURN;
	END IF;
	PERFORM pg_notify('distsync_v1_' || p.owner, 'o' || p_name)
		FROM {s}distsync_v1_part p
		WHERE p.name = p_name AND p.role = 5 AND p.expires > clock_timestamp();
END $f$;

-- In a transaction of the caller's own: whether that owner has the lock. Until the transaction is
-- over nobody gets it who hasn't got it now. Renewals, re-entries and releases go on. p_token: of a
-- fenced hold; else 0.
CREATE OR REPLACE FUNCTION {s}distsync_v1_guard(p_name text, p_owner text, p_token bigint)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
BEGIN
	IF current_setting('max_prepared_transactions')::integer > 0
		AND EXISTS (SELECT FROM pg_class c
			WHERE c.oid IN ('{s}distsync_v1_lock'::regclass, '{s}distsync_v1_part'::regclass)
				AND c.relpersistence <> 'p') THEN
		RAISE EXCEPTION
			'distsync: a transaction that is prepared would be guarded no more after a crash, since the tables of locks are unlogged'
			USING ERRCODE = 'DS002',
				HINT = 'Make the tables logged, or set max_prepared_transactions to 0.';
	END IF;
	PERFORM FROM {s}distsync_v1_lock k
		WHERE k.name = p_name AND k.owner = p_owner AND (p_token = 0 OR k.token = p_token)
			AND NOT k.kept AND k.expires > clock_timestamp() FOR KEY SHARE;
	IF NOT FOUND AND p_token = 0 THEN
		PERFORM FROM {s}distsync_v1_part p
			WHERE p.name = p_name AND p.role IN (1, 4) AND p.owner = p_owner
				AND NOT p.kept AND p.expires > clock_timestamp() FOR KEY SHARE;
	END IF;
	RETURN FOUND;
END $f$;

-- Deletes what has been over for a day, so that no clock of a standby that was promoted is behind
-- by it: of the pages from p_from on, so many, of both tables. next is where to go on; NULL at the
-- end, or if another is at it.
CREATE OR REPLACE FUNCTION {s}distsync_v1_sweep(
	p_from bigint, p_pages integer, OUT gone bigint, OUT next bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $f$
DECLARE
	k record;
	a tid := format('(%s,0)', greatest(p_from, 0))::tid;
	z tid := format('(%s,0)', greatest(p_from, 0) + least(greatest(p_pages, 1), 1000))::tid;
	over timestamptz := clock_timestamp() - interval '1 day';
BEGIN
	{unflushed}
	gone := 0;
	IF NOT pg_try_advisory_xact_lock({s}distsync_v1_key('sweep of ' || {literal})) THEN
		RETURN;
	END IF;
	FOR k IN SELECT p.name, p.role, p.owner FROM {s}distsync_v1_part p
		WHERE p.ctid >= a AND p.ctid < z AND p.expires < over FOR UPDATE SKIP LOCKED
	LOOP
		DELETE FROM {s}distsync_v1_part p
			WHERE p.name = k.name AND p.role = k.role AND p.owner = k.owner;
		gone := gone + 1;
	END LOOP;
	FOR k IN SELECT l.name FROM {s}distsync_v1_lock l
		WHERE l.ctid >= a AND l.ctid < z AND l.kind <= 3 AND l.expires < over AND l.asked < over
			AND NOT EXISTS (SELECT FROM {s}distsync_v1_part p WHERE p.name = l.name)
		FOR UPDATE OF l SKIP LOCKED
	LOOP
		-- A reader on the short way.
		CONTINUE WHEN NOT pg_try_advisory_xact_lock({s}distsync_v1_key(k.name));
		DELETE FROM {s}distsync_v1_lock l WHERE l.name = k.name
			AND NOT EXISTS (SELECT FROM {s}distsync_v1_part p WHERE p.name = k.name);
		gone := gone + 1;
	END LOOP;
	next := p_from + least(greatest(p_pages, 1), 1000);
	IF next * current_setting('block_size')::bigint
		>= greatest(pg_relation_size('{s}distsync_v1_lock'::regclass),
			pg_relation_size('{s}distsync_v1_part'::regclass)) THEN
		next := NULL;
	END IF;
END $f$;

-- Tells those who have asked that a plain lock is kept: as distsync_v1_tell, but nobody may get in,
-- so that in each session those alone are woken who only watch.
CREATE OR REPLACE FUNCTION {s}distsync_v1_tell_kept(p_name text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
	SELECT pg_notify('distsync_v1_' || p.owner, 'k' || p_name)
		FROM {s}distsync_v1_part p
		WHERE p.name = p_name AND p.role = 5 AND p.expires > clock_timestamp()
$f$;

-- Count-down latches. Their names are no locks'; one without a row is open.
CREATE TABLE IF NOT EXISTS {s}distsync_v1_latch (
	name text COLLATE "C" PRIMARY KEY,
	n    bigint NOT NULL CHECK (n > 0)
) WITH (fillfactor = 50);

-- A step of a latch: 1 gives it a count (done) unless it has one, 2 takes one from that; opens: it
-- was the last.
CREATE OR REPLACE FUNCTION {s}distsync_v1_count(
	p_name text, p_do integer, p_n bigint, OUT n bigint, OUT done boolean, OUT opens boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s' AS $f$
BEGIN
{begin}
	done := false;
	opens := false;
	IF p_do = 1 THEN
		INSERT INTO {s}distsync_v1_latch AS l (name, n) VALUES (p_name, p_n)
			ON CONFLICT (name) DO NOTHING RETURNING l.n INTO n;
		done := FOUND;
	ELSIF p_do = 2 THEN
		PERFORM FROM {s}distsync_v1_latch l WHERE l.name = p_name FOR UPDATE;
		UPDATE {s}distsync_v1_latch l SET n = l.n - 1 WHERE l.name = p_name AND l.n > 1;
		IF NOT FOUND THEN
			-- Not one that has been opened, and set anew, since the statement before.
			DELETE FROM {s}distsync_v1_latch l WHERE l.name = p_name AND l.n = 1;
			opens := FOUND;
		END IF;
	END IF;
	SELECT l.n INTO n FROM {s}distsync_v1_latch l WHERE l.name = p_name;
	n := coalesce(n, 0);
END $f$;
