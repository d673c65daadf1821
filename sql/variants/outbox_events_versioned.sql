-- An outbox table with event_data and a version of the event.
--
-- Who runs it: the owner of the application's tables. Rights: CREATE on the schema.
-- Repeatable: an existing table is not changed, also if it has other columns.
--
-- Columns are found by name: topic outbox.event.<aggregate_type>, key aggregate_id, eventType from event_type, value from
-- event_data. To publish event_version, too:  --header eventVersion=event_version

CREATE TABLE IF NOT EXISTS public.outbox_events (
    id             uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    aggregate_id   text        NOT NULL,
    aggregate_type text        NOT NULL,
    event_type     text        NOT NULL,
    event_data     jsonb       NOT NULL,
    event_version  integer     NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL DEFAULT now()
);
