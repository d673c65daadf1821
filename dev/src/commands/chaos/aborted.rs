//! How many transactions Kafka has aborted, by the brokers' own books: for each partition a `.txnindex`, with one entry
//! of 34 bytes (version, producer, first and last offset, last stable offset) for each aborted transaction.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context as _, Result};
use walrelay_dev::cluster::Cluster;

/// The size of an entry, in bytes.
const ENTRY: u64 = 34;

/// Aborted transactions, each counted once in each partition that it had records in.
pub(super) fn count(cluster: &Cluster) -> Result<u64> {
    let mut partitions: HashMap<String, u64> = HashMap::new();
    for broker in cluster.brokers() {
        let data = broker.log().with_file_name("data");
        for partition in fs::read_dir(&data).with_context(|| format!("cannot look into {}", data.display()))?.flatten()
        {
            let Ok(files) = fs::read_dir(partition.path()) else { continue };
            let indices = files.flatten().filter(|file| file.path().extension().is_some_and(|end| end == "txnindex"));
            let entries: u64 = indices.map(|file| file.metadata().map_or(0, |data| data.len() / ENTRY)).sum();
            let most = partitions.entry(partition.file_name().to_string_lossy().into_owned()).or_default();
            *most = entries.max(*most);
        }
    }
    Ok(partitions.values().sum())
}
