//! The relay's binary between a real Postgres and a real Kafka.
//!
//! One server of each is shared, with a database, a slot and topics for each test; a test that stops or breaks one starts
//! its own. What is waited for is always a condition, with a deadline that only a failure reaches.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

mod broker_errors;
mod elsewhere;
mod lane;
mod load;
mod own;

mod actions;
mod aws;
mod backfill;
mod backfill_changes;
mod backfill_rows;
mod bad_rows;
mod bench;
mod broker;
mod check;
mod cloudevents;
mod commands;
mod conformance;
mod consumers;
mod coverage;
mod cut_off;
mod dead_letters;
mod domains;
mod doors;
mod dry_run;
mod exactly_once;
mod failover;
mod first_batch;
mod hints;
mod idle;
mod locks;
mod login;
mod manual;
mod names;
mod nats;
mod nats_access;
mod nats_bad_rows;
mod network;
mod nineteen;
mod oauth;
mod older_copy;
mod other_server;
mod pages;
mod partitions;
mod promotion;
mod prune;
mod prune_kept;
mod prune_partitions;
mod rabbitmq;
mod rabbitmq_access;
mod reconnects;
mod records;
mod redis;
mod redis_access;
mod redis_cluster;
mod refusals;
mod registry;
mod renames;
mod replicas;
mod republish;
mod resent;
mod rights;
mod role;
mod rotation;
mod secure;
mod shapes;
mod shards;
mod shards_filters;
mod shards_rows;
mod shards_slots;
mod signals;
mod silent;
mod slots;
mod sns;
mod sqs;
mod standby;
mod stops;
mod tables;
mod tokens;
mod topics;
mod transactions;
