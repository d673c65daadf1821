//! (to be written)

pub mod mapping;
