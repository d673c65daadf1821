-- What the captured messages beside this file come from: every kind of message that protocol version 1 sends.
-- Run by a superuser in an empty database with wal_level = logical; then, one line of hexadecimal digits a message:
--   SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('cap', NULL, NULL,
--          'proto_version', '1', 'publication_names', 'p', 'messages', 'true');
-- Each file is named after the server's major version.
CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, type mood, payload jsonb, big text);
ALTER TABLE outbox ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE computed (id int PRIMARY KEY, doubled int GENERATED ALWAYS AS (id * 2) STORED, last text);
ALTER TABLE outbox REPLICA IDENTITY FULL;
CREATE TABLE "Other ""Table""" (id int PRIMARY KEY, note varchar(20));
CREATE PUBLICATION p FOR ALL TABLES;
SELECT 'x' FROM pg_create_logical_replication_slot('cap', 'pgoutput');
SELECT 'x' FROM pg_replication_origin_create('elsewhere');
BEGIN;
INSERT INTO outbox VALUES (1, 'order', 'o-1', 'calm', '{"total": 1.50, "name": "Zoë"}', repeat('x', 3000)), (2, NULL, '', 'wild', NULL, NULL);
INSERT INTO "Other ""Table""" VALUES (1, 'note');
INSERT INTO computed (id, last) VALUES (1, 'last');
SAVEPOINT a; INSERT INTO outbox VALUES (3, 'lost'); ROLLBACK TO a;
UPDATE outbox SET aggregateid = 'o-2' WHERE id = 1;
UPDATE "Other ""Table""" SET id = 2;
DELETE FROM outbox WHERE id = 2;
SELECT 'x' FROM pg_logical_emit_message(true, 'outbox', '{"id": 9}');
COMMIT;
SELECT 'x' FROM pg_logical_emit_message(false, 'aside', 'not in a transaction');
TRUNCATE outbox, "Other ""Table""";
SELECT 'x' FROM pg_replication_origin_session_setup('elsewhere');
BEGIN; SELECT 'x' FROM pg_replication_origin_xact_setup('0/1000', now()); INSERT INTO outbox VALUES (4, 'far', 'f', 'calm', '[]', NULL); COMMIT;
SELECT pg_replication_origin_session_reset();
BEGIN; ALTER TABLE outbox ADD COLUMN extra int; INSERT INTO outbox (id, extra) VALUES (5, 50); COMMIT;
