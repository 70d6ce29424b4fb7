//! The JSON API's `fields` parameter: which members an answer has.

use serde_json::{Map, Value};

use super::reply::Failure;

/// A member, and which of its own members are selected; none for all.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: String,
    inner: Vec<Field>,
}

/// Reduces an answer to what `fields` selects: `name,size` or `nextPageToken,items(name,size)`.
pub(super) fn select(answer: Value, fields: Option<&str>) -> Result<Value, Failure> {
    let Some(text) = fields else {
        return Ok(answer);
    };
    let mut rest = text;
    let selected = parse(&mut rest).filter(|_| rest.is_empty());
    let selected = selected
        .ok_or_else(|| Failure::new(400, "invalidParameter", &format!("Invalid field selection {text}")))?;
    Ok(reduce(answer, &selected))
}

fn parse(rest: &mut &str) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    loop {
        let end = rest.find([',', '(', ')']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return None;
        }
        *rest = after;
        let mut inner = Vec::new();
        if let Some(after) = rest.strip_prefix('(') {
            *rest = after;
            inner = parse(rest)?;
            *rest = rest.strip_prefix(')')?;
        }
        fields.push(Field { name: name.to_owned(), inner });
        match rest.strip_prefix(',') {
            Some(after) => *rest = after,
            None => return Some(fields),
        }
    }
}

fn reduce(value: Value, selected: &[Field]) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(|value| reduce(value, selected)).collect(),
        Value::Object(mut members) => {
            let kept: Map<String, Value> = selected
                .iter()
                .filter_map(|field| {
                    let value = members.remove(&field.name)?;
                    let value = if field.inner.is_empty() { value } else { reduce(value, &field.inner) };
                    Some((field.name.clone(), value))
                })
                .collect();
            Value::Object(kept)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_has_what_was_selected() {
        let answer =
            json!({"kind": "k", "items": [{"name": "a", "size": "1", "etag": "x"}], "nextPageToken": "t"});
        let selected = select(answer.clone(), Some("nextPageToken,items(name,size)")).unwrap();
        assert_eq!(selected, json!({"nextPageToken": "t", "items": [{"name": "a", "size": "1"}]}));
        assert_eq!(select(answer.clone(), Some("kind,none")).unwrap(), json!({"kind": "k"}));
        assert_eq!(select(answer.clone(), None).unwrap(), answer);
        for bad in ["", ",", "a,", "a(", "a(b", "a)", "a()", "a b"] {
            assert!(select(answer.clone(), Some(bad)).is_err(), "{bad}");
        }
    }
}
