//! Debezium Server's sinks: the settings of each destination, default and tuned.
//!
//! In: where to, if that is not Kafka. Out: lines of `application.properties`, with places for what differs from run to run. What a sink
//! writes has the row's id and key in it, so that the same comparison serves for all.
//!
//! Specification: Debezium's documentation, "Debezium Server", "Sink configuration".

use walrelay_dev::brokers::Kind;

/// Whether Debezium runs with its default settings, or with those that matter for the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tuning {
    AsItComes,
    Tuned,
}

/// The settings of one sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sink {
    /// The sink, and what goes along with it.
    plain: &'static str,
    /// What is added for the rate.
    tuned: &'static str,
}

const KAFKA: Sink = Sink {
    plain: "
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers={address}
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.acks=all
debezium.sink.kafka.producer.compression.type={compression}
debezium.sink.kafka.producer.max.request.size=2000000
debezium.format.value=simplestring
debezium.format.header=clientprovided
debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter
debezium.transforms.outbox.table.fields.additional.placement=event_type:header:eventType
",
    tuned: "
debezium.sink.kafka.producer.linger.ms=5
debezium.sink.kafka.producer.batch.size=524288
",
};

/// One pipeline of `XADD`s at a time. This sink and the next take headers as texts only, which are JSON's: in quotes.
const REDIS: Sink = Sink {
    plain: "
debezium.sink.type=redis
debezium.sink.redis.address={address}
debezium.sink.redis.message.format=extended
debezium.format.value=simplestring
debezium.format.header=json
debezium.format.header.schemas.enable=false
debezium.transforms.outbox.table.fields.additional.placement=event_type:header:eventType
",
    tuned: "
debezium.sink.redis.batch.size=5000
",
};

/// The sink does not write the key: a header has it.
const NATS: Sink = Sink {
    plain: "
debezium.sink.type=nats-jetstream
debezium.sink.nats-jetstream.url=nats://{address}
debezium.format.value=simplestring
debezium.format.header=json
debezium.format.header.schemas.enable=false
debezium.transforms.outbox.table.fields.additional.placement=event_type:header:eventType,aggregate_id:header:key
",
    tuned: "
debezium.sink.nats-jetstream.async.enabled=true
debezium.sink.nats-jetstream.async.timeout.ms=60000
",
};

/// All of a batch before the first confirm is waited for.
const RABBITMQ: Sink = Sink {
    plain: "
debezium.sink.type=rabbitmq
debezium.sink.rabbitmq.connection.host={host}
debezium.sink.rabbitmq.connection.port={port_of_broker}
debezium.sink.rabbitmq.exchange=outbox
debezium.sink.rabbitmq.routingKey.source=topic
debezium.format.value=simplestring
debezium.format.header=json
debezium.format.header.schemas.enable=false
debezium.transforms.outbox.table.fields.additional.placement=event_type:header:eventType,aggregate_id:header:key
",
    tuned: "
debezium.sink.rabbitmq.ackTimeout=60000
",
};

/// One message to a request, all of one group, without attributes: an envelope has the id and the key.
const SQS: Sink = Sink {
    plain: "
debezium.sink.type=sqs
debezium.sink.sqs.region=us-east-1
debezium.sink.sqs.endpoint=http://{address}
debezium.sink.sqs.queue.url=http://{address}/000000000000/{topic}
debezium.format.value=json
debezium.format.value.schemas.enable=false
debezium.transforms.outbox.table.fields.additional.placement=id:envelope:id,event_type:envelope:eventType,aggregate_id:envelope:key
",
    tuned: "",
};

impl Sink {
    /// The one of this destination; `None`: Kafka.
    pub(super) const fn to(kind: Option<Kind>) -> Self {
        match kind {
            None => KAFKA,
            Some(Kind::Valkey) => REDIS,
            Some(Kind::Nats) => NATS,
            Some(Kind::RabbitMq) => RABBITMQ,
            Some(Kind::ElasticMq) => SQS,
        }
    }

    /// Its lines.
    pub(super) fn settings(self, tuning: Tuning) -> String {
        match tuning {
            Tuning::AsItComes => self.plain.to_owned(),
            Tuning::Tuned => [self.plain, self.tuned].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sink_writes_id_key_and_type_and_names_its_own_settings() {
        for kind in Kind::ALL.map(Some).into_iter().chain([None]) {
            let settings = Sink::to(kind).settings(Tuning::Tuned);
            let value = |name: &str| {
                settings.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
            };
            let sink = value("debezium.sink.type");
            assert!(!sink.is_empty(), "{kind:?}");
            assert!(value("debezium.transforms.outbox.table.fields.additional.placement").contains("eventType"));
            let own =
                settings.lines().filter(|line| line.starts_with("debezium.sink.") && !line.contains("sink.type="));
            assert!(
                own.clone().count() > 0 && own.clone().all(|line| line.contains(&format!("sink.{sink}."))),
                "{kind:?}"
            );
        }
    }
}
