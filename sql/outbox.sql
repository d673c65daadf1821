-- The outbox table, in the shape that Debezium's outbox event router reads as it comes.
--
-- Who runs it: the owner of the application's tables, as a migration of the application.
-- Rights: CREATE on the schema. Repeatable: an existing table is left as it is.
--
-- The application inserts a row in the transaction that changes its own tables. walrelay publishes each committed row:
--
--   topic   outbox.event.<aggregatetype>
--   key     aggregateid: records of one aggregate keep their order
--   value   payload
--   headers id, eventType = type
--
-- id is a uuid, not a serial: it identifies the event for consumers that drop repeats, also after rows were moved or
-- inserted again, and no sequence has to be read first. On PostgreSQL 18 and later uuidv7() as the default keeps the
-- index small and local; an application may as well bring its own ids.
--
-- payload as json keeps what was written, byte for byte, and is checked to be JSON. As text it is not checked. As jsonb
-- it is published in Postgres' own form (keys reordered, duplicates gone, blanks changed), and it costs more: each row is
-- turned back into text when it is published. Choose jsonb only where the table is also searched by payload. Avro,
-- Protobuf and the like go into bytea and are published as they are.
--
-- created_at is not published. It says which rows are old enough to be deleted.

CREATE TABLE IF NOT EXISTS public.outbox (
    id            uuid         NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    aggregatetype varchar(255) NOT NULL,
    aggregateid   varchar(255) NOT NULL,
    type          varchar(255) NOT NULL,
    payload       json,
    created_at    timestamptz  NOT NULL DEFAULT now()
);
