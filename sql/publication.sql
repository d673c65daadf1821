-- The publication: the table whose inserts Postgres sends to walrelay.
--
-- Who runs it: the owner of the outbox table. Rights: CREATE on the database (GRANT CREATE ON DATABASE ... TO ...).
-- Repeatable: the table is added if the publication lacks it. Nothing is removed. Names to change: walrelay, public.outbox.
-- `walrelay setup --apply --table public.outbox` creates publication and slot.
--
-- publish = 'insert': deletes of old rows need not be sent. It is set only for a publication that is created here.
--
-- A partitioned outbox: name its root. The publication then has all partitions, also those that are added later. walrelay
-- reads it with and without publish_via_partition_root.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = 'walrelay') THEN
        CREATE PUBLICATION walrelay FOR TABLE public.outbox WITH (publish = 'insert');
    ELSIF NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_publication AS publication
        LEFT JOIN pg_catalog.pg_publication_rel AS member
            ON member.prpubid = publication.oid AND member.prrelid = 'public.outbox'::regclass
        WHERE publication.pubname = 'walrelay' AND (publication.puballtables OR member.oid IS NOT NULL)
    ) THEN
        ALTER PUBLICATION walrelay ADD TABLE public.outbox;
    END IF;
END
$$;
