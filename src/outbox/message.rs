//! Treats a logical message as a row without a table.
//!
//! In: the content of a `pg_logical_emit_message`: a JSON object whose keys are names of columns. Out: a plan and values, as those of a
//! table. A string becomes its content, null stays null, and any other value becomes its JSON text. If a key repeats, the last one
//! counts, as in jsonb. If a setting names a column that the object lacks, it is null.

use super::column_kind::ColumnKind;
use super::fault::BadReason;
use super::json::{self, Member};
use super::plan::{self, MissingColumn, PlanColumn, PlanError, Role, TablePlan};
use crate::outbox::{Details, Mapping, SchemaId, Timestamp};
use crate::pgoutput::{LogicalMessage, TupleValue};
use crate::route::TopicRule;
use crate::setting_text::shown;
use std::borrow::Cow;

/// The object's members. If a name repeats, the last one comes first.
pub(super) type Members<'a> = Vec<(Cow<'a, str>, Member<'a>)>;

/// Reads the object's members.
pub(super) fn members<'a>(message: &LogicalMessage<'a>) -> Result<Members<'a>, BadReason> {
    let not_json = || BadReason::NotJson { value: shown(message.content) };
    let text = std::str::from_utf8(message.content)
        .map_err(|_| BadReason::NotUtf8 { column: "content".to_owned(), value: shown(message.content) })?;
    let mut members = Members::new();
    json::members(text, |name, member| members.push((name, member))).map_err(|_| not_json())?;
    members.reverse();
    Ok(members)
}

/// Adds the columns that settings name and the object lacks, with the value null. A table must have them; an object may leave them out.
/// Id, payload and route are not added, since they are needed.
pub(super) fn complete<'a>(members: &mut Members<'a>, mapping: &'a Mapping) {
    let timestamp = match &mapping.timestamp {
        Timestamp::Send | Timestamp::Commit => None,
        Timestamp::Column(name) => Some(name),
    };
    let single = [&mapping.key_column, &mapping.type_column, &mapping.headers_column, &mapping.partition_column];
    let paired = mapping.headers.iter().chain(&mapping.envelope).map(|(_, column)| column);
    let schema_id = mapping.schema_id.as_ref().and_then(SchemaId::column);
    let names = single.into_iter().flatten().chain(timestamp).chain(paired).map(String::as_str).chain(schema_id);
    for name in names {
        if !name.is_empty() && !members.iter().any(|(known, _)| known == name) {
            members.push((name.into(), Member::Null));
        }
    }
}

/// The plan for an object with these members.
pub(super) fn plan(
    table: String,
    members: &Members<'_>,
    mapping: &Mapping,
    topic: &TopicRule,
) -> Result<TablePlan, BadReason> {
    let plan = TablePlan::resolve(table, plan_columns(members), mapping, topic).map_err(missing)?;
    // The members have no types. So no details are needed, and all columns are texts.
    plan.connected(None, mapping, &Details::default()).map_err(missing)
}

fn plan_columns(members: &Members<'_>) -> Vec<PlanColumn> {
    let kind =
        |member: &Member<'_>| if matches!(member, Member::Json(_)) { ColumnKind::Json } else { ColumnKind::Text };
    let column = |(name, member): &(Cow<'_, str>, Member<'_>)| PlanColumn {
        name: name.clone().into_owned(),
        type_id: 0,
        kind: kind(member),
    };
    members.iter().map(column).collect()
}

/// The members' values, in the order of the plan.
pub(super) fn columns<'m>(members: &'m Members<'_>) -> Vec<TupleValue<'m>> {
    let texts = members.iter().map(|(_, member)| member.text());
    texts.map(|text| text.map_or(TupleValue::Null, |text| TupleValue::Text(text.as_bytes()))).collect()
}

/// The id, shortened, if there is no plan with its column.
pub(super) fn shown_id(members: &Members<'_>, mapping: &Mapping) -> Option<String> {
    let index = plan::id_column(&plan_columns(members), mapping)?;
    members.get(index)?.1.text().map(|text| shown(text.as_bytes()))
}

fn missing(error: PlanError) -> BadReason {
    match error {
        PlanError::Lacks { lacks, .. } => match lacks.into_iter().next() {
            Some(MissingColumn::Role { role, tried, .. }) => missing_role(role, tried.join(", ")),
            Some(MissingColumn::Named { flag, column, .. }) => missing_named(flag, column),
            None => missing_role(Role::Route, String::new()),
        },
        PlanError::NotAsDebezium { column, why, .. } => BadReason::Unwritable { column, value: why.to_owned() },
        PlanError::WrongType { flag, column, .. } => missing_named(flag, column),
        // Only tables give this error.
        PlanError::EnvelopesDiffer { one, .. } => missing_named("--envelope", one),
    }
}

fn missing_named(flag: &str, column: String) -> BadReason {
    let roles = [Role::Id, Role::Payload];
    missing_role(roles.into_iter().find(|role| role.flag() == flag).unwrap_or(Role::Route), column)
}

fn missing_role(role: Role, column: String) -> BadReason {
    match role {
        Role::Id => BadReason::MissingId { column },
        Role::Payload => BadReason::MissingPayload { column },
        Role::Key | Role::Type | Role::Route | Role::Headers => BadReason::NullRoute { column },
    }
}
