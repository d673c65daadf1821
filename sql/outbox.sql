-- The outbox table, with the columns that Debezium's outbox event router reads by default.
--
-- Who runs it: the owner of the application's tables, as a migration of the application.
-- Rights: CREATE on the schema. Repeatable: an existing table is not changed.
--
-- The application inserts a row in the transaction that changes its own tables. walrelay publishes each committed row:
--
--   topic   outbox.event.<aggregatetype>
--   key     aggregateid: records of one aggregate keep their order
--   value   payload
--   headers id, eventType = type
--
-- id: a uuid, not a serial. Consumers drop repeats by it, also after rows were moved or inserted again. No sequence is read
-- first. On PostgreSQL 18 and later, uuidv7() as the default keeps the index small. An application may set its own ids.
--
-- payload: json keeps what was written, byte for byte, and Postgres checks that it is JSON. text is not checked. jsonb is
-- published in Postgres' own form: keys reordered, duplicates removed, blanks changed. jsonb costs more, since Postgres
-- writes each row as text again. Choose it only if you also search the table by payload. Use bytea for Avro, Protobuf and
-- other bytes: they are published unchanged.
--
-- created_at: not published. It says which rows are old enough to be deleted.

CREATE TABLE IF NOT EXISTS public.outbox (
    id            uuid         NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    aggregatetype varchar(255) NOT NULL,
    aggregateid   varchar(255) NOT NULL,
    type          varchar(255) NOT NULL,
    payload       json,
    created_at    timestamptz  NOT NULL DEFAULT now()
);
