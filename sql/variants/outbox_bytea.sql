-- The smallest outbox table, with a payload that is already encoded: Avro, Protobuf, compressed text.
--
-- Who runs it: the owner of the application's tables. Rights: CREATE on the schema.
-- Repeatable: an existing table is not changed, also if it has other columns.
--
-- Columns are found by name: topic outbox.event.<type>, eventType from type, value from payload: its bytes, unchanged.
-- There is no key, so records have no order.

CREATE TABLE IF NOT EXISTS public.outbox (
    id      uuid  NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    type    text  NOT NULL,
    payload bytea NOT NULL
);
