//! A server that takes connections and says nothing.

use std::net::TcpListener;

use walrelay_dev::relay::Relay;

use crate::lane::{LONG, binary};

#[test]
#[ignore = "slow"]
fn a_server_that_answers_nothing_holds_up_no_stop() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    // Without a limit of its own the attempt to connect lasts indefinitely.
    let source = format!("--source=postgres://u@{address}/d?connect_timeout=0");
    let arguments = ["run", &source, "--brokers=127.0.0.1:1", "--shutdown-timeout=1s"];
    let mut relay = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    // The relay is connecting once it has connected.
    let _connection = silent.accept().unwrap();
    let exit = relay.terminate(LONG).unwrap();
    assert_eq!(exit.code, 1, "{}", relay.log());
    assert!(relay.log().contains("waiting for an answer"), "{}", relay.log());
}
