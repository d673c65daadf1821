//! Redis' protocol, version 2: a command, then its reply.
//!
//! A transaction is refused as a whole or not at all, from its MULTI to its EXEC: a server that has taken the MULTI waits for the EXEC.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result};

use super::Shared;

pub(super) fn serve(client: &TcpStream, server: &TcpStream, shared: &Shared) -> Result<()> {
    let (mut commands, mut replies) = (BufReader::new(client), BufReader::new(server));
    let mut is_transaction_refused = None;
    loop {
        let (name, command) = command(&mut commands)?;
        let code = match (name.as_str(), is_transaction_refused) {
            (_, Some(refused)) => refused,
            ("MULTI" | "XADD" | "EVAL" | "EVALSHA", None) => shared.code(),
            _ => None,
        };
        match name.as_str() {
            "MULTI" => is_transaction_refused = Some(code),
            "EXEC" => is_transaction_refused = None,
            _ => {}
        }
        let reply = if let Some(code) = code {
            shared.count();
            let word = if code % 2 == 0 { "ERR".to_owned() } else { format!("INVENTED{code}") };
            format!("-{word} refusal {code} of the proxy\r\n").into_bytes()
        } else {
            (&*server).write_all(&command)?;
            let mut reply = Vec::new();
            copy_reply(&mut replies, &mut reply)?;
            reply
        };
        (&*client).write_all(&reply)?;
    }
}

/// The command's name in upper case, and its bytes.
fn command(from: &mut BufReader<&TcpStream>) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let words: usize = head(from, &mut bytes)?.strip_prefix('*').context("a command is an array")?.parse()?;
    let mut name = String::new();
    for place in 0..words {
        let start = bytes.len();
        copy_reply(from, &mut bytes)?;
        if place == 0 {
            let word = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default());
            name = word.lines().nth(1).unwrap_or_default().to_ascii_uppercase();
        }
    }
    Ok((name, bytes))
}

/// Reads a line, with its end, into `bytes`, and returns it without.
fn head(from: &mut BufReader<&TcpStream>, bytes: &mut Vec<u8>) -> Result<String> {
    let start = bytes.len();
    from.read_until(b'\n', bytes)?;
    let line = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default());
    Ok(line.strip_suffix("\r\n").context("the connection was lost")?.to_owned())
}

fn copy_reply(from: &mut BufReader<&TcpStream>, bytes: &mut Vec<u8>) -> Result<()> {
    let line = head(from, bytes)?;
    match line.split_at_checked(1) {
        Some(("$" | "*", "-1")) => {}
        Some(("$", length)) => {
            let mut value = vec![0; length.parse::<usize>()? + 2];
            from.read_exact(&mut value)?;
            bytes.extend_from_slice(&value);
        }
        Some(("*", items)) => {
            for _ in 0..items.parse::<usize>()? {
                copy_reply(from, bytes)?;
            }
        }
        _ => {}
    }
    Ok(())
}
