//! Records to moto, a second server that speaks the protocols of SQS and SNS. `make versions` runs it.

use walrelay_dev::brokers::{Moto, Queues};

use crate::elsewhere::{assert_complete, insert, lane, start};
use crate::lane::{LONG, Lane};

/// Writes rows to `to`, with a kill of the relay in the middle, and reads what has come in the queue.
fn deliver(lane: &Lane, to: &str, topic: &str, queues: Queues, queue: &str) {
    let mut relay = start(lane, to, &["--topic", topic]);
    relay.wait_streaming(LONG).unwrap();
    let mut client = lane.connect();
    insert(&mut client, 1, 100);
    relay.kill9().unwrap();
    insert(&mut client, 101, 200);
    relay.start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let messages = queues.drain(queue).unwrap();
    let ids: Vec<String> = messages.iter().map(|message| message.attribute("id").to_owned()).collect();
    assert_complete(&ids, 200);
    let message = messages.iter().find(|message| message.attribute("id") == "8").unwrap();
    assert_eq!((message.body.as_str(), message.group.as_str(), message.attribute("key")), ("{}", "k1", "k1"));
}

#[test]
#[ignore = "slow"]
fn rows_arrive_in_order_in_queues_and_behind_topics_and_a_kill_loses_none() {
    let moto = Moto::start().unwrap();
    let lane_of_queue = lane();
    let queue = format!("{}-order.fifo", lane_of_queue.name);
    moto.queues().create(&queue, &[]).unwrap();
    let topic = format!("{}-{{route}}.fifo", lane_of_queue.name);
    deliver(&lane_of_queue, &moto.url("sqs"), &topic, moto.queues(), &queue);

    let lane_of_topic = lane();
    let queue = format!("{}-order.fifo", lane_of_topic.name);
    moto.queues().create(&queue, &[]).unwrap();
    let topic = moto.create_topic(&queue).unwrap().replace("-order.", "-{route}.");
    deliver(&lane_of_topic, &moto.url("sns"), &topic, moto.queues(), &queue);
}
