//! NATS' protocol: a line, and behind those that carry a message its bytes.
//!
//! Specification: NATS, "Client Protocol"; JetStream's `PubAck` with an error.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;

use super::Shared;

pub(super) fn serve(client: &TcpStream, server: &TcpStream, subjects: &str, shared: &Shared) -> Result<()> {
    // Messages of the server's and of ours go over the same connection, each in one piece.
    let to_client = Arc::new(Mutex::new(client.try_clone()?));
    let (from_server, its) = (server.try_clone()?, Arc::clone(&to_client));
    thread::spawn(move || {
        let mut from_server = BufReader::new(&from_server);
        while let Ok((_, bytes)) = unit(&mut from_server) {
            if its.lock().write_all(&bytes).is_err() {
                break;
            }
        }
        drop(its.lock().shutdown(std::net::Shutdown::Both));
    });
    let mut from_client = BufReader::new(client);
    // Subjects with the numbers by which the client knows them.
    let mut subscriptions: Vec<(String, String)> = Vec::new();
    loop {
        let (line, bytes) = unit(&mut from_client)?;
        let words: Vec<&str> = line.split(' ').collect();
        if let ["SUB", subject, .., number] = words.as_slice() {
            subscriptions.push(((*subject).to_owned(), (*number).to_owned()));
        }
        let code = match words.as_slice() {
            ["PUB" | "HPUB", subject, ..] if subject.starts_with(subjects) => shared.code(),
            _ => None,
        };
        let Some(code) = code else {
            (&*server).write_all(&bytes)?;
            continue;
        };
        // Of a batch, only the last message wants an answer.
        let (["PUB", _, reply, _] | ["HPUB", _, reply, _, _]) = words.as_slice() else { continue };
        let its = subscriptions.iter().rev().find(|(subject, _)| matches(subject, reply));
        let (_, number) = its.context("nobody listens for the answer")?;
        let error = format!(
            "{{\"error\":{{\"code\":400,\"err_code\":{code},\"description\":\"refusal {code} of the proxy\"}},\"stream\":\"s\",\"seq\":0}}"
        );
        shared.count();
        let answer = format!("MSG {reply} {number} {}\r\n{error}\r\n", error.len());
        to_client.lock().write_all(answer.as_bytes())?;
    }
}

/// Whether a subscription takes a subject. Of the wildcards, it knows the one at the end.
fn matches(subscription: &str, subject: &str) -> bool {
    match subscription.strip_suffix(['*', '>']) {
        Some(start) => subject.starts_with(start),
        None => subscription == subject,
    }
}

/// A line without its end, and all its bytes with the message behind it.
fn unit(from: &mut BufReader<&TcpStream>) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    from.read_until(b'\n', &mut bytes)?;
    let line = String::from_utf8_lossy(&bytes).strip_suffix("\r\n").context("the connection was lost")?.to_owned();
    let mut words = line.split(' ');
    if let (Some("PUB" | "HPUB" | "MSG" | "HMSG"), Some(length)) = (words.next(), words.next_back()) {
        let mut message = vec![0; length.parse::<usize>()? + 2];
        from.read_exact(&mut message)?;
        bytes.extend_from_slice(&message);
    }
    Ok((line, bytes))
}
