-- The consumer's table of processed events: each event has its effect once, though it may be delivered more than once.
--
-- Who runs it: the owner of the consumer's database, which need not be the producer's. Rights: CREATE on the schema.
-- Repeatable: an existing table is not changed.
--
-- For each record, with the record's header "id", in the transaction that does the work:
--
--   BEGIN;
--   INSERT INTO public.processed_events (consumer_name, event_id)
--   VALUES ('billing', $1)
--   ON CONFLICT DO NOTHING;
--   -- 1 row:  the first time. Do the work now, in this transaction.
--   -- 0 rows: done before. Skip the work.
--   COMMIT;
--   -- Only now commit the offset to Kafka.
--
-- If the work fails, the transaction is rolled back, and the event counts as not processed. If the same event is processed
-- twice at the same time, the second INSERT waits for the first transaction: 0 rows after its commit, 1 row after its
-- rollback. A rollback does not undo work outside the database (a mail, a call), so that work may happen twice.
--
-- event_id is text, because the header carries text, whatever type the outbox's id has.
--
-- Delete old events from time to time. Keep each for longer than its record can come again: the topic's retention, if
-- consumers may be reset to its beginning.
--
--   DELETE FROM public.processed_events WHERE processed_at < now() - interval '14 days';

CREATE TABLE IF NOT EXISTS public.processed_events (
    consumer_name text        NOT NULL,
    event_id      text        NOT NULL,
    processed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_name, event_id)
);

-- For pruning. Rows come in the order of their time, so a block range index finds them and costs next to nothing.
CREATE INDEX IF NOT EXISTS processed_events_processed_at ON public.processed_events USING brin (processed_at);
