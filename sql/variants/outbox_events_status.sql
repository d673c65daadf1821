-- An outbox table that polling workers use: headers, a status, a count of attempts.
--
-- Who runs it: the owner of the application's tables. Rights: CREATE on the schema.
-- Repeatable: an existing table is not changed, also if it has other columns.
--
-- Columns are found by name: topic outbox.event.<aggregate_type>, key aggregate_id, eventType from event_type, value from
-- payload, one header for each member of headers (such as traceparent). status, published_at and retry_count belong to the
-- worker that polled: walrelay neither reads nor writes them, and a new application does not need them.

CREATE TABLE IF NOT EXISTS public.outbox_events (
    id             uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        jsonb       NOT NULL,
    headers        jsonb,
    status         text        NOT NULL DEFAULT 'PENDING',
    retry_count    integer     NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT now(),
    published_at   timestamptz
);
