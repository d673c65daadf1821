-- The role that walrelay connects as: what `walrelay run` and `walrelay status` need, and no right on any table.
--
-- Who runs it: a superuser, in the outbox's database. Repeatable. Name to change: walrelay. `walrelay setup --apply --role
-- walrelay` does the same. Publication and slot are made by the table's owner (`walrelay setup --apply`), not by this role.
--
-- Managed services have their own way to REPLICATION. On Amazon RDS and Aurora, in place of it:
--   ALTER ROLE walrelay LOGIN; GRANT rds_replication TO walrelay;
--
-- REPLICATION  opens the replication connection, and makes and drops slots. It reads what a publication publishes without
--              any right on the tables, and it can read every slot's stream: give it to nothing else.
-- CONNECT      is everyone's unless it was revoked.
-- pg_read_all_stats  shows which process holds a slot back, and for how long. walrelay runs without it.
--
-- A password is not set here: \password walrelay in psql keeps it out of files and logs.
-- pg_hba.conf: the replication connection names the database, so the line for that database applies; the keyword
-- "replication" in the database column does not match it.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'walrelay') THEN
        CREATE ROLE walrelay;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO walrelay', current_database());
END
$$;

ALTER ROLE walrelay LOGIN REPLICATION;

GRANT pg_read_all_stats TO walrelay;
