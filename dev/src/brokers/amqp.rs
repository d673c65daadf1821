//! RabbitMQ as far as tests need it, by a library that the relay does not use, so that what the relay published is read by another.
//!
//! One question, one answer: the library is asynchronous, and each call here waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use amqprs::channel::{
    BasicAckArguments, BasicConsumeArguments, BasicGetArguments, BasicPublishArguments, BasicQosArguments, Channel,
    ConsumerMessage, ExchangeDeclareArguments, ExchangeDeleteArguments, QueueBindArguments, QueueDeclareArguments,
    QueuePurgeArguments, QueueUnbindArguments,
};
use amqprs::connection::OpenConnectionArguments;
use amqprs::{BasicProperties, FieldTable, FieldValue};
use anyhow::{Context as _, Result, bail};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

/// How long a connection, and each answer, may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Messages that a consumer is given before it acknowledges any.
const PREFETCH: u16 = 1000;

/// The header by which a stream says a message's place, from 0.
const STREAM_OFFSET: &str = "x-stream-offset";

/// A message of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub key: String,
    /// The properties that it has, by their names: `message_id`, `type`, …
    pub properties: BTreeMap<&'static str, String>,
    /// Its headers as text.
    pub headers: BTreeMap<String, Option<String>>,
    /// Its body.
    pub body: Vec<u8>,
    /// The delivery tag for [`Connection::acknowledge`]; 0: nothing is to be acknowledged.
    pub tag: u64,
}

impl Message {
    fn new(exchange: &str, key: &str, tag: u64, given: &BasicProperties, body: Vec<u8>) -> Self {
        let texts = [
            ("content_type", given.content_type()),
            ("content_encoding", given.content_encoding()),
            ("correlation_id", given.correlation_id()),
            ("reply_to", given.reply_to()),
            ("expiration", given.expiration()),
            ("message_id", given.message_id()),
            ("type", given.message_type()),
            ("user_id", given.user_id()),
            ("app_id", given.app_id()),
        ];
        let numbers = [
            ("delivery_mode", given.delivery_mode().map(u64::from)),
            ("priority", given.priority().map(u64::from)),
            ("timestamp", given.timestamp()),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?.clone())));
        let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string())));
        let headers = given.headers().into_iter().flat_map(AsRef::as_ref);
        let headers = headers.map(|(name, value)| (name.to_string(), text_of(value)));
        Self {
            exchange: exchange.to_owned(),
            key: key.to_owned(),
            properties: texts.chain(numbers).collect(),
            headers: headers.collect(),
            body,
            tag,
        }
    }

    /// A property; empty where there is none.
    pub fn property(&self, name: &str) -> &str {
        self.properties.get(name).map_or("", String::as_str)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Its place in a stream, from 0; `None`: it does not come out of one.
    pub fn stream_offset(&self) -> Option<i64> {
        self.headers.get(STREAM_OFFSET)?.as_deref()?.parse().ok()
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the other values are shown as the library shows them")]
fn text_of(value: &FieldValue) -> Option<String> {
    match value {
        FieldValue::V => None,
        FieldValue::x(bytes) => Some(String::from_utf8_lossy(&Vec::from(bytes.clone())).into_owned()),
        other => Some(other.to_string()),
    }
}

/// Whole numbers, and texts.
fn table(entries: &[(&str, &str)]) -> Result<FieldTable> {
    let mut table = FieldTable::new();
    for (name, value) in entries {
        let value = value.parse().map_or_else(|_| FieldValue::from(*value), FieldValue::l);
        table.insert((*name).try_into()?, value);
    }
    Ok(table)
}

/// A connection to a broker on 127.0.0.1, as `guest` in the vhost `/`, with one channel.
pub struct Connection {
    /// `None` only while the connection is dropped.
    open: Option<(Channel, amqprs::connection::Connection)>,
    deliveries: Option<UnboundedReceiver<ConsumerMessage>>,
    runtime: Runtime,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens, or it is refused.
    pub fn open(port: u16) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let arguments = OpenConnectionArguments::new("127.0.0.1", port, "guest", "guest");
        let opening = async {
            let connection = amqprs::connection::Connection::open(&arguments).await?;
            Ok((connection.open_channel(None).await?, connection))
        };
        let open = wait(&runtime, opening)?;
        Ok(Self { open: Some(open), deliveries: None, runtime })
    }

    /// Asks the broker, and waits for the answer.
    fn ask<'a, T, F>(&'a self, question: impl FnOnce(&'a Channel) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, amqprs::error::Error>>,
    {
        let (channel, _) = self.open.as_ref().context("the connection is closed")?;
        wait(&self.runtime, question(channel))
    }

    /// Declares a durable exchange, such as of type `topic`.
    ///
    /// # Errors
    /// It is refused.
    pub fn exchange(&mut self, name: &str, kind: &str) -> Result<()> {
        let arguments = ExchangeDeclareArguments::new(name, kind).durable(true).finish();
        self.ask(|channel| channel.exchange_declare(arguments))
    }

    /// Deletes an exchange.
    ///
    /// # Errors
    /// It is refused.
    pub fn delete_exchange(&mut self, name: &str) -> Result<()> {
        self.ask(|channel| channel.exchange_delete(ExchangeDeleteArguments::new(name)))
    }

    /// Declares a durable queue with these arguments.
    ///
    /// # Errors
    /// It is refused.
    pub fn queue(&mut self, name: &str, arguments: &[(&str, &str)]) -> Result<()> {
        let arguments = QueueDeclareArguments::durable_client_named(name).arguments(table(arguments)?).finish();
        self.ask(|channel| channel.queue_declare(arguments)).map(drop)
    }

    /// How many messages of a queue wait for a consumer.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn length(&mut self, name: &str) -> Result<u64> {
        let arguments = QueueDeclareArguments::new(name).passive(true).finish();
        let (_, messages, _) = self.ask(|channel| channel.queue_declare(arguments))?.context("no count")?;
        Ok(messages.into())
    }

    /// Removes the messages of a queue.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn purge(&mut self, name: &str) -> Result<()> {
        self.ask(|channel| channel.queue_purge(QueuePurgeArguments::new(name))).map(drop)
    }

    /// Binds a queue.
    ///
    /// # Errors
    /// It is refused.
    pub fn bind(&mut self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        self.ask(|channel| channel.queue_bind(QueueBindArguments::new(queue, exchange, key)))
    }

    /// Ends a binding.
    ///
    /// # Errors
    /// It is refused.
    pub fn unbind(&mut self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        self.ask(|channel| channel.queue_unbind(QueueUnbindArguments::new(queue, exchange, key)))
    }

    /// Takes all messages out of a queue, in its order.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn drain(&mut self, queue: &str) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        while let Some(message) = self.get(queue)? {
            messages.push(message);
        }
        Ok(messages)
    }

    /// Takes the first message out of a queue; `None`: it is empty.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn get(&mut self, queue: &str) -> Result<Option<Message>> {
        let arguments = BasicGetArguments::new(queue).no_ack(true).finish();
        let got = self.ask(|channel| channel.basic_get(arguments))?;
        Ok(got.map(|(get, given, body)| Message::new(get.exchange(), get.routing_key(), 0, &given, body)))
    }

    /// Begins to take the messages of a queue, which go on to come: see [`Connection::delivered`]. `from`: of a stream, the first
    /// that is wanted.
    ///
    /// # Errors
    /// It is refused.
    pub fn consume(&mut self, queue: &str, from: Option<i64>) -> Result<()> {
        self.ask(|channel| channel.basic_qos(BasicQosArguments::new(0, PREFETCH, false)))?;
        let from = from.map(|from| from.to_string());
        let arguments: Vec<(&str, &str)> = from.iter().map(|from| (STREAM_OFFSET, from.as_str())).collect();
        let consume = BasicConsumeArguments::new(queue, "dev").arguments(table(&arguments)?).finish();
        let (_, deliveries) = self.ask(|channel| channel.basic_consume_rx(consume))?;
        self.deliveries = Some(deliveries);
        Ok(())
    }

    /// The next message of the queue that is consumed; `None` when none comes within `limit`.
    ///
    /// # Errors
    /// The connection is lost, or the queue is gone.
    pub fn delivered(&mut self, limit: Duration) -> Result<Option<Message>> {
        let deliveries = self.deliveries.as_mut().context("nothing is consumed")?;
        let Ok(came) = self.runtime.block_on(async { timeout(limit, deliveries.recv()).await }) else {
            return Ok(None);
        };
        let came = came.context("the connection was closed")?;
        let (Some(deliver), Some(given)) = (came.deliver, came.basic_properties) else { bail!("half a message") };
        let (exchange, key, tag) = (deliver.exchange(), deliver.routing_key(), deliver.delivery_tag());
        Ok(Some(Message::new(exchange, key, tag, &given, came.content.unwrap_or_default())))
    }

    /// Whether all that has come was looked at.
    pub fn is_drained(&self) -> bool {
        self.deliveries.as_ref().is_none_or(UnboundedReceiver::is_empty)
    }

    /// All messages up to this one have been dealt with.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn acknowledge(&mut self, message: &Message) -> Result<()> {
        self.ask(|channel| channel.basic_ack(BasicAckArguments::new(message.tag, true)))
    }

    /// Publishes to a queue, by the exchange that every queue is bound to. Whether it arrives shows there.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn publish(&mut self, queue: &str, body: &[u8]) -> Result<()> {
        let place = BasicPublishArguments::new("", queue);
        self.ask(|channel| channel.basic_publish(BasicProperties::default(), body.to_vec(), place))
    }

    /// Leaves, so that the broker has dealt with everything that was sent.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn leave(mut self) -> Result<()> {
        let Some((channel, connection)) = self.open.take() else { return Ok(()) };
        wait(&self.runtime, async {
            channel.close().await?;
            connection.close().await
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The library says goodbye in tasks, which it needs a runtime for.
        let _inside = self.runtime.enter();
        drop(self.open.take());
    }
}

fn wait<T>(runtime: &Runtime, answer: impl Future<Output = Result<T, amqprs::error::Error>>) -> Result<T> {
    let answer = runtime.block_on(async { timeout(PATIENCE, answer).await });
    Ok(answer.context("RabbitMQ does not answer")??)
}
