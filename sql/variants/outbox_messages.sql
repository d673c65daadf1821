-- An outbox table without an aggregate's type: the event's type is the topic.
--
-- Who runs it: the owner of the application's tables. Rights: CREATE on the schema.
-- Repeatable: an existing table is not changed, also if it has other columns.
--
-- Columns are found by name: topic outbox.event.<event_type>, key aggregate_id, eventType from event_type, value from
-- payload. Events of different types are in different topics, and have no order. One topic for all keeps the order:
-- --topic orders

CREATE TABLE IF NOT EXISTS public.outbox_messages (
    id           uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    event_type   text        NOT NULL,
    payload      jsonb       NOT NULL,
    aggregate_id text,
    status       text        NOT NULL DEFAULT 'PENDING',
    created_at   timestamptz NOT NULL DEFAULT now()
);
