-- An outbox table for tasks rather than events: no aggregate, a sequence number.
--
-- Who runs it: the owner of the application's tables. Rights: CREATE on the schema.
-- Repeatable: an existing table is not changed, also if it has other columns.
--
-- Columns are found by name: topic outbox.event.<task_type>, eventType from task_type, value from payload. There is no
-- key, so records are spread over the topic's partitions and have no order. seq rises in the order of inserts, not of
-- commits: it is not the order of the records. Tasks are published when they are committed. A column that says when to run
-- a task is for the consumer.

CREATE TABLE IF NOT EXISTS public.outbox_tasks (
    id         uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    task_type  text        NOT NULL,
    payload    jsonb       NOT NULL,
    seq        bigint      GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL DEFAULT now()
);
