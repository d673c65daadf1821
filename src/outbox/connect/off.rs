//! Replaces `connect` in a build without the feature `debezium`. Its types have no values, so no record can be written that way.

#![allow(clippy::unused_self, reason = "the methods are those of the module that this one stands for")]

use super::Details;
use super::fault::RowError;
use super::mapping::Mapping;
use super::patterns::TablePatterns;
use super::plan::TablePlan;
use super::record::{MappedRow, Scratch};
use crate::pgoutput::Relation;
use crate::sink::Record;

/// The settings for Debezium's records.
pub(super) mod settings {
    /// There are none.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Connect {}
}

pub use settings::Connect;

/// How the columns of a table become Debezium's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectPlan {}

/// The reason why a table has no such plan.
pub(super) struct NoPlan {
    pub(super) index: usize,
    pub(super) why: &'static str,
}

impl Connect {
    /// The columns that are captured.
    pub fn captured(&self) -> TablePatterns {
        match *self {}
    }

    /// Whether all tables must have the same envelopes.
    pub const fn wants_alike_envelopes(&self) -> bool {
        match *self {}
    }

    /// Whether a table may lack a column.
    pub const fn skips_missing(&self) -> bool {
        match *self {}
    }
}

impl ConnectPlan {
    pub(super) fn new(
        _: &TablePlan,
        _: Option<&Relation>,
        _: &Mapping,
        connect: &Connect,
        _: &Details,
    ) -> Result<Self, NoPlan> {
        match *connect {}
    }
}

impl TablePlan {
    pub(super) fn without_left_out(&mut self, _: Option<&Relation>, connect: &Connect, _: &Details) {
        match *connect {}
    }
}

impl<'a> MappedRow<'a> {
    pub(super) fn with_connect_record<T>(
        self,
        connect: &'a ConnectPlan,
        _: &mut Scratch,
        _: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<T, RowError> {
        match *connect {}
    }
}
