//! The sink contract, as a script that every destination passes on its real server.
//!
//! In: a [`Ground`], which opens the destination's sink, reads what is stored with a client of its own, and does to the server what
//! happens to servers. Out: whether the sink keeps what `Sink` in `src/sink/mod.rs` promises. A new destination is a ground and one
//! line of [`contract`].

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

mod nats;
mod rabbitmq;
mod redis;
mod redis_cluster;
mod script;
mod sns;
mod sqs;

/// One test for each promise.
macro_rules! contract {
    ($ground:ty) => {
        #[test]
        fn what_is_taken_is_stored_in_order_and_reported_once() {
            crate::script::taken(&<$ground>::new());
        }

        #[test]
        fn a_full_sink_takes_more_once_reports_have_come() {
            crate::script::full(&<$ground>::new());
        }

        #[test]
        fn what_passes_by_itself_is_waited_out_and_said() {
            crate::script::blocked(&<$ground>::new());
        }

        #[test]
        fn a_refused_record_holds_its_lane_alone_until_it_is_decided() {
            crate::script::refused(&<$ground>::new());
        }

        #[test]
        fn a_record_that_is_sent_again_is_stored_as_one_that_is_sent_once() {
            crate::script::resent(&<$ground>::new());
        }

        #[test]
        fn a_restart_forgets() {
            crate::script::restart(&<$ground>::new());
        }

        #[test]
        fn keys_keep_their_order_through_refusals_and_lost_connections() {
            crate::script::order(&<$ground>::new());
        }
    };
}
pub(crate) use contract;
