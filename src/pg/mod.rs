//! Talking to the server.

pub mod source;
