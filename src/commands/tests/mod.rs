//! What holds of all commands.

#[cfg(all(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis", feature = "aws"))]
mod hints;
