//! What holds of all commands.

mod hints;
