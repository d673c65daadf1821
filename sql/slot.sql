-- The replication slot: the place in the WAL up to which rows are published.
--
-- Who runs it: any role with REPLICATION, in the outbox's database. Needs wal_level = logical and a free slot.
-- Repeatable: an existing slot is left as it is, also one of that name in another database: slot names are cluster-wide.
-- Name to change: walrelay. `walrelay setup --apply` also remembers, in the publication's comment, that the slot was made.
--
-- To be made after the publication, and before the first row that is to be published: rows committed before are not in it.
-- Run it by itself, not inside a transaction. It waits until every transaction that is open when it begins has ended.
--
-- A slot keeps WAL on disk until it is read. Set max_slot_wal_keep_size to what the disk can bear, watch its lag, and drop
-- a slot that nobody reads any more:  SELECT pg_drop_replication_slot('walrelay');

SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = 'walrelay');
