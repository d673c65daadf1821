-- The publication: which table's inserts leave the database.
--
-- Who runs it: the owner of the outbox table. Rights: CREATE on the database (GRANT CREATE ON DATABASE ... TO ...).
-- Repeatable: the table is added if it is not in it yet; nothing is taken away. Names to change: walrelay, public.outbox.
-- `walrelay setup --apply --table public.outbox` makes publication and slot.
--
-- publish = 'insert': deleting old rows of an outbox is normal and need not be sent. It is set only for a publication that
-- is made here.
--
-- A partitioned outbox: name its root. All partitions are in the publication then, also those that are added later.
-- walrelay reads it with and without publish_via_partition_root.

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
