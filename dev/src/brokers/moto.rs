//! moto: a second server that speaks the protocols of SQS and SNS.
//!
//! In: nothing. Out: a server on a free loopback port, in one region. It keeps nothing over a restart, takes records that the service refuses, and gives a repeat an
//! id of its own: it shows that requests and answers fit, and no more.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::bring;
use super::queues::{Queues, REGION, post};
use crate::process::LastWill;
use crate::service::Service;
use crate::{http, provision, run_dir};

/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_mins(3);

/// The account that it gives to everybody.
const ACCOUNT: &str = "123456789012";

/// A server; it ends when dropped, and what it holds with it.
#[derive(Debug)]
pub struct Moto {
    port: u16,
    service: Service,
}

impl Moto {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start() -> Result<Self> {
        let packages = bring::moto()?;
        let folder = run_dir::make(&provision::dev_dir().join("run"), "moto")?;
        let mut moto = Self { port: run_dir::free_port()?, service: Service::new("moto", folder) };
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", packages).current_dir(moto.service.folder());
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p"]).arg(moto.port.to_string());
        moto.service.launch(&mut command, LastWill::default())?;
        let port = moto.port;
        moto.service.wait_until(PATIENCE, || {
            post(port, "AmazonSQS.ListQueues", b"{}").is_ok_and(|(status, _)| status == 200)
        })?;
        Ok(moto)
    }

    /// What `--to` takes for its queues (`sqs`) or its topics (`sns`).
    pub fn url(&self, service: &str) -> String {
        format!("{service}+http://test:test@127.0.0.1:{}/{REGION}", self.port)
    }

    /// Its queues.
    pub fn queues(&self) -> Queues {
        Queues::on(self.port)
    }

    /// Creates a FIFO topic whose messages go to a FIFO queue of the same name, which is there, as they are. Returns the topic's ARN.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn create_topic(&self, name: &str) -> Result<String> {
        self.call(&format!(
            "Action=CreateTopic&Name={name}&Attributes.entry.1.key=FifoTopic&Attributes.entry.1.value=true"
        ))?;
        let [topic, queue] = ["sns", "sqs"].map(|service| format!("arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"));
        self.call(&format!(
            "Action=Subscribe&TopicArn={topic}&Protocol=sqs&Endpoint={queue}&Attributes.entry.1.key=RawMessageDelivery&Attributes.entry.1.value=true"
        ))?;
        Ok(topic)
    }

    fn call(&self, action: &str) -> Result<()> {
        let head = format!(
            "Content-Type: application/x-www-form-urlencoded\r\nAuthorization: AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/sns/aws4_request, \
             SignedHeaders=host, Signature=none\r\n"
        );
        let body = format!("{action}&Version=2010-03-31");
        let (status, answer) =
            http::exchange(self.port, "POST /", &head, body.as_bytes(), PATIENCE).with_context(|| action.to_owned())?;
        if status != 200 {
            bail!("{action}: {status} {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }
}
