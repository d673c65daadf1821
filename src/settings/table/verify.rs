//! The flags of `verify`, which also takes the settings of `run`. The doc comment of a row is its help text.

use super::form::{ANY_DURATION, Number, any, size};
use super::{Setting, SettingGroup, flag, one, settings};
use crate::setting_text::Given;
use std::time::Duration;

settings! { FLAGS "":
    /// How long new rows are compared; 0: until Ctrl-C
    FOLLOW: Duration = one("follow", "DURATION", &ANY_DURATION).or("1min");

    /// Compare the rows that are in the table and younger than this, instead of new ones
    SINCE: Duration = one("since", "DURATION", &ANY_DURATION).excludes(&["follow"]);

    /// With --since: only rows for which this holds
    WHERE: Given = one("where", "SQL", &any);

    /// With --since: column that says how old a row is
    AGE_COLUMN: String = super::others::prune::AGE_COLUMN;

    /// How long the relay's slot may take to confirm rows that are open at the end
    WAIT: Duration = one("wait", "DURATION", &ANY_DURATION).or("1min");

    /// The topics are this slot's alone: a record without a row is an error (Kafka). --topic has to begin with a fixed text
    EXCLUSIVE: bool = flag("exclusive");

    /// The most errors that are shown one by one
    SHOW: usize = one("show", "N", &Number(0, 100_000, "a number from 0 to 100000")).or("20");

    /// Show keys, values and headers of records that differ
    SHOW_VALUES: bool = flag("show-values");

    /// Memory for rows and records, at least 1MiB; if it is reached, the comparison ends early; --since reads more than once
    MEMORY: usize = one("memory", "SIZE", &size(1 << 20, usize::MAX, ", at least 1MiB")).or("256MiB");

    /// Print JSON: verified, mode, from_lsn, to_lsn, seconds, rows, right, missing, altered, out_of_order, stale_keys, other, repeated,
    /// dead_lettered, skipped, not_judged, reasons, faults (verdict, table, id, position, topic, partition, offset, why), hint
    JSON: bool = flag("json");
}
