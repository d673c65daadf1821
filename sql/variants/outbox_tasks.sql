-- An outbox table for tasks rather than events: no aggregate, a sequence number.
--
-- Who runs it: the owner of the application's tables. Rights: CREATE on the schema.
-- Repeatable: an existing table is left as it is, also one of another shape.
--
-- Columns are found by name: topic outbox.event.<task_type>, eventType from task_type, value from payload. There is no
-- key, so records spread over the topic's partitions and have no order among each other. seq rises as rows are inserted,
-- not as they are committed: consumers should not take it for the order of the records.
-- Tasks are published when they are committed; a column that says when to run one is for the consumer to read.

CREATE TABLE IF NOT EXISTS public.outbox_tasks (
    id         uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    task_type  text        NOT NULL,
    payload    jsonb       NOT NULL,
    seq        bigint      GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL DEFAULT now()
);
