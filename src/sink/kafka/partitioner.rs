//! [`Partitioner`]: which partition a key goes to, by librdkafka's own functions, so that other producers agree.
//!
//! In: a key, the number of partitions. Out: a partition, or none if any will do. Pure.
//! Specification: librdkafka's CONFIGURATION.md, `partitioner`.

use rdkafka::bindings as native;
use std::ptr;

/// How keys are spread over partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partitioner {
    hash: Hash,
    /// Records without a key may go to any partition. With `consistent_random`, so may records with an empty one.
    spreads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Murmur2,
    Crc32,
    Fnv1a,
}

impl Partitioner {
    /// The partitioner with this value of librdkafka's property `partitioner`. walrelay has refused values that are not deterministic.
    pub(super) fn named(name: &str) -> Self {
        let hash = match name.strip_suffix("_random").unwrap_or(name) {
            "consistent" => Hash::Crc32,
            "fnv1a" => Hash::Fnv1a,
            _ => Hash::Murmur2,
        };
        Self { hash, spreads: name.ends_with("_random") }
    }

    /// The partition of a key. `None`: any partition.
    pub(super) fn of(self, key: Option<&[u8]>, count: i32) -> Option<i32> {
        let anywhere = match self.hash {
            Hash::Crc32 => key.is_none_or(<[u8]>::is_empty),
            Hash::Murmur2 | Hash::Fnv1a => key.is_none(),
        };
        (!(self.spreads && anywhere)).then(|| self.hash(key.unwrap_or_default(), count))
    }

    #[allow(unsafe_code, reason = "librdkafka's own, so that other clients agree")]
    fn hash(self, key: &[u8], count: i32) -> i32 {
        let partitioner = match self.hash {
            Hash::Murmur2 => native::rd_kafka_msg_partitioner_murmur2,
            Hash::Crc32 => native::rd_kafka_msg_partitioner_consistent,
            Hash::Fnv1a => native::rd_kafka_msg_partitioner_fnv1a,
        };
        // SAFETY: these read the key, whose pointer and length are a slice's, and the count; not the topic and not the opaques.
        unsafe { partitioner(ptr::null(), key.as_ptr().cast(), key.len(), count, ptr::null_mut(), ptr::null_mut()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Java's `Utils.murmur2`, as its own tests have it.
    #[test]
    fn keys_go_where_javas_clients_send_them() {
        let java = [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)];
        for (key, hash) in java {
            let expected = (hash & i32::MAX) % 12;
            assert_eq!(Partitioner::named("murmur2_random").of(Some(key.as_bytes()), 12), Some(expected), "{key}");
        }
        assert_eq!(Partitioner::named("murmur2_random").of(None, 12), None);
        assert_eq!(Partitioner::named("consistent_random").of(Some(b""), 12), None);
        assert!(Partitioner::named("murmur2").of(None, 12).is_some());
        assert_ne!(Partitioner::named("fnv1a").hash, Partitioner::named("consistent").hash);
    }
}
