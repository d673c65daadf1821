-- The role that walrelay connects as: what `walrelay run` and `walrelay status` need, and no right on any table.
--
-- Who runs it: a superuser, in the outbox's database. Repeatable. Name to change: walrelay. `walrelay setup --apply --role
-- walrelay` does the same. The table's owner creates publication and slot (`walrelay setup --apply`), not this role.
--
-- Managed services grant REPLICATION in their own way. On Amazon RDS and Aurora, use instead:
--   ALTER ROLE walrelay LOGIN; GRANT rds_replication TO walrelay;
--
-- REPLICATION  opens the replication connection, and creates and drops slots. It reads what a publication publishes
--              without any right on the tables. It can read every slot's stream: give it to no other role.
-- CONNECT      is granted to everyone unless it was revoked.
-- pg_read_all_stats  shows which process keeps a slot from moving, and for how long. walrelay runs without it.
--
-- No password is set here. \password walrelay in psql keeps it out of files and logs.
-- pg_hba.conf: the replication connection names the database, so the line for that database applies. The keyword
-- "replication" in the database column does not match.

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
