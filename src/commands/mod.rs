//! The commands, one file each.

pub mod check;
pub mod run;

/// The settings are wrong; nothing was contacted, or nothing was changed.
pub const EXIT_SETTINGS: u8 = 64;
