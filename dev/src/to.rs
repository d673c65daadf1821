//! Where records go, as it is typed.

use walrelay_dev::brokers;

/// A destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum To {
    Kafka,
    Redis,
    Nats,
    Rabbitmq,
    Sqs,
}

impl To {
    /// Which broker that is, if not Kafka.
    pub(crate) fn kind(self) -> Option<brokers::Kind> {
        match self {
            Self::Kafka => None,
            Self::Redis => Some(brokers::Kind::Valkey),
            Self::Nats => Some(brokers::Kind::Nats),
            Self::Rabbitmq => Some(brokers::Kind::RabbitMq),
            Self::Sqs => Some(brokers::Kind::ElasticMq),
        }
    }
}
