//! stub until the settings land
#![allow(missing_docs)]
use secrecy::SecretString;
use std::{path::PathBuf, time::Duration};
#[derive(Debug, Clone)]
pub enum Host {
    Tcp { name: String, port: u16 },
    Unix { dir: PathBuf, port: u16 },
}
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}
#[derive(Debug, Clone)]
pub enum RootCert {
    None,
    File(PathBuf),
    System,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSessionAttrs {
    Any,
    ReadWrite,
}
#[derive(Debug, Clone)]
pub struct Source {
    pub hosts: Vec<Host>,
    pub user: String,
    pub password: Option<SecretString>,
    pub dbname: String,
    pub sslmode: SslMode,
    pub sslrootcert: RootCert,
    pub sslcert: Option<PathBuf>,
    pub sslkey: Option<PathBuf>,
    pub channel_binding: ChannelBinding,
    pub connect_timeout: Option<Duration>,
    pub target_session_attrs: TargetSessionAttrs,
    pub options: Option<String>,
    pub application_name: String,
}
