//! JSON as a person would lay it out: on one line what fits there, else a line for each member.

use serde_json::Value;

/// The widest line that is not one string alone.
const WIDTH: usize = 118;

/// With an end of line.
pub fn print(value: &Value) -> String {
    let mut out = String::new();
    put(value, 0, 0, &mut out);
    out.push('\n');
    out
}

/// `before`: what stands on the line already.
fn put(value: &Value, depth: usize, before: usize, out: &mut String) {
    let line = one_line(value);
    if before + line.chars().count() < WIDTH {
        return out.push_str(&line);
    }
    match value {
        Value::Array(items) => {
            let items = items.iter().map(|item| (String::new(), item));
            put_all('[', items, ']', depth, out);
        }
        Value::Object(members) => {
            let members = members.iter().map(|(name, member)| (format!("{}: ", Value::from(name.as_str())), member));
            put_all('{', members, '}', depth, out);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push_str(&line),
    }
}

fn put_all<'v>(
    open: char,
    items: impl Iterator<Item = (String, &'v Value)>,
    close: char,
    depth: usize,
    out: &mut String,
) {
    out.push(open);
    for (number, (name, item)) in items.enumerate() {
        out.push_str(if number == 0 { "\n" } else { ",\n" });
        let indent = " ".repeat(2 * (depth + 1));
        out.push_str(&indent);
        out.push_str(&name);
        put(item, depth + 1, indent.len() + name.chars().count() + 1, out);
    }
    out.push('\n');
    out.push_str(&" ".repeat(2 * depth));
    out.push(close);
}

fn one_line(value: &Value) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", join(items.iter().map(one_line).collect())),
        Value::Object(members) if members.is_empty() => "{}".to_owned(),
        Value::Object(members) => {
            let member =
                |(name, member): (&String, &Value)| format!("{}: {}", Value::from(name.as_str()), one_line(member));
            format!("{{ {} }}", join(members.iter().map(member).collect()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_on_its_line() {
        let long = "x".repeat(80);
        let value = serde_json::json!({ "a": [1, [2, null]], "b": {}, "c": [long.clone(), { "d": long }] });
        let expected = format!(
            "{{\n  \"a\": [1, [2, null]],\n  \"b\": {{}},\n  \"c\": [\n    \"{long}\",\n    {{ \"d\": \"{long}\" }}\n  ]\n}}\n"
        );
        assert_eq!(print(&value), expected);
        assert_eq!(serde_json::from_str::<Value>(&print(&value)).unwrap(), value);
    }
}
