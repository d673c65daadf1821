//! What holds of all commands.

mod fixes;
#[cfg(all(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis", feature = "aws"))]
mod hints;
