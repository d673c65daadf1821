-- The replication slot: it stores the LSN up to which rows are published.
--
-- Who runs it: any role with REPLICATION, in the outbox's database. Needs wal_level = logical and a free slot.
-- Repeatable: an existing slot is not changed. Slot names are cluster-wide, so that includes one in another database.
-- Name to change: walrelay. `walrelay setup --apply` also records in the publication's comment that the slot was created.
--
-- Create it after the publication, and before the first row that is to be published. Rows committed before are not in it.
-- Run it by itself, not inside a transaction. It waits until every transaction that is open at its start has ended.
--
-- A slot keeps WAL on disk until it is confirmed. Set max_slot_wal_keep_size to what the disk can hold, and watch the lag.
-- Drop a slot that nobody needs:  SELECT pg_drop_replication_slot('walrelay');

SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = 'walrelay');
