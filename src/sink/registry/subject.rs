//! Makes the subject of a record's schema from a template.
//!
//! In: a template with `{topic}` and `{type}`; a record's topic and type. Out: the subject. Pure.
//! Confluent's strategies are `{topic}-value` (the default), `{type}` and `{topic}-{type}`.

/// A template of subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects(Vec<SubjectPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum SubjectPart {
    Text(String),
    Topic,
    Type,
}

/// The error for a text that is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a text with {{topic}} or {{type}}, such as {{topic}}-value")]
pub struct SubjectError;

impl Default for Subjects {
    fn default() -> Self {
        Self(vec![SubjectPart::Topic, SubjectPart::Text("-value".to_owned())])
    }
}

impl Subjects {
    /// Parses a template.
    ///
    /// # Errors
    /// The text is empty, or has braces around something else than `topic` and `type`.
    pub fn parse(template: &str) -> Result<Self, SubjectError> {
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, behind) = behind.split_once('}').ok_or(SubjectError)?;
            parts.extend(text(before)?);
            parts.push(match name {
                "topic" => SubjectPart::Topic,
                "type" => SubjectPart::Type,
                _ => return Err(SubjectError),
            });
            rest = behind;
        }
        parts.extend(text(rest)?);
        if parts.is_empty() { Err(SubjectError) } else { Ok(Self(parts)) }
    }

    /// Writes the subject to `out`, whose text it replaces. Returns `false` if the template needs a type and there is none.
    pub(super) fn fill(&self, topic: &str, event_type: Option<&[u8]>, out: &mut String) -> bool {
        out.clear();
        let event_type = event_type.and_then(|bytes| std::str::from_utf8(bytes).ok()).filter(|text| !text.is_empty());
        for part in &self.0 {
            match (part, event_type) {
                (SubjectPart::Text(text), _) => out.push_str(text),
                (SubjectPart::Topic, _) => out.push_str(topic),
                (SubjectPart::Type, Some(text)) => out.push_str(text),
                (SubjectPart::Type, None) => return false,
            }
        }
        true
    }
}

fn text(text: &str) -> Result<Option<SubjectPart>, SubjectError> {
    if text.contains('}') {
        return Err(SubjectError);
    }
    Ok((!text.is_empty()).then(|| SubjectPart::Text(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_usual_strategies_name_the_subjects_that_serializers_use() {
        let fill = |template: &str, event_type: Option<&str>| {
            let mut out = "old".to_owned();
            Subjects::parse(template).unwrap().fill("orders", event_type.map(str::as_bytes), &mut out).then_some(out)
        };
        assert_eq!(fill("{topic}-value", None).as_deref(), Some("orders-value"));
        assert_eq!(fill("{type}", Some("shop.Placed")).as_deref(), Some("shop.Placed"));
        assert_eq!(fill("{topic}-{type}", Some("Placed")).as_deref(), Some("orders-Placed"));
        assert_eq!((fill("{type}", None), fill("{type}", Some(""))), (None, None));
        assert_eq!(fill("fixed", None).as_deref(), Some("fixed"));
        assert_eq!(Subjects::default(), Subjects::parse("{topic}-value").unwrap());
        for wrong in ["", "{key}", "{topic", "topic}", "{}", "a}{topic}"] {
            assert_eq!(Subjects::parse(wrong), Err(SubjectError), "{wrong}");
        }
    }
}
