//! The order of `--sort-by`.

use std::cmp::Ordering;

use longshore_core::model::Quantity;
use serde_json::Value;

use super::ClientError;
use super::jsonpath::Template;
use super::show::misfit;

/// Sorts values by what a path finds in them. What has nothing there comes first; equals keep their order.
pub(super) fn sort_by<T>(
    items: &mut Vec<T>,
    path: &Template,
    object: impl Fn(&T) -> &Value,
) -> Result<(), ClientError> {
    let mut keyed = Vec::new();
    let mut found_any = items.is_empty();
    for item in items.drain(..) {
        let found = path.find(object(&item)).map_err(|error| misfit(path, &error))?;
        let key = found.into_iter().flatten().next().map(std::borrow::Cow::into_owned);
        found_any |= key.is_some();
        keyed.push((key.unwrap_or(Value::Null), item));
    }
    if !found_any {
        let why = "no object has such a field".to_owned();
        return Err(ClientError::Template { template: path.source().to_owned(), why });
    }
    keyed.sort_by(|(left, _), (right, _)| order(left, right));
    items.extend(keyed.into_iter().map(|(_, item)| item));
    Ok(())
}

fn order(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Null, Value::Null) => Ordering::Equal,
        (Value::Null, _) => Ordering::Less,
        (_, Value::Null) => Ordering::Greater,
        (Value::Number(left), Value::Number(right)) => {
            left.as_f64().partial_cmp(&right.as_f64()).unwrap_or(Ordering::Equal)
        }
        (Value::String(left), Value::String(right)) => {
            match (left.parse::<Quantity>(), right.parse::<Quantity>()) {
                (Ok(left), Ok(right)) => left.cmp(&right),
                _ => natural(left, right),
            }
        }
        (left, right) => left.to_string().cmp(&right.to_string()),
    }
}

/// Numbers inside texts count as numbers: `a9` comes before `a10`.
fn natural(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left, right);
    loop {
        let (a, b) = (chunk(&mut left), chunk(&mut right));
        if a.is_empty() || b.is_empty() {
            return a.len().cmp(&b.len());
        }
        let digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let ordering = match digits(a) && digits(b) {
            true => {
                let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
                a.len().cmp(&b.len()).then_with(|| a.cmp(b))
            }
            false => a.cmp(b),
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
}

/// Takes the next run of digits, or of anything else.
fn chunk<'a>(text: &mut &'a str) -> &'a str {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(text.len());
    let (taken, rest) = text.split_at(end);
    *text = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sorted(values: Value) -> Result<Value, ClientError> {
        let mut items = values.as_array().cloned().unwrap_or_default();
        sort_by(&mut items, &Template::relaxed(".k").unwrap(), |item| item)?;
        Ok(items.iter().map(|item| item["k"].clone()).collect())
    }

    #[test]
    fn texts_numbers_and_quantities_have_their_own_order() {
        for (values, order) in [
            (json!([{"k": "a10"}, {"k": "a9"}, {"k": "a010"}]), json!(["a9", "a10", "a010"])),
            (json!([{"k": "b"}, {}, {"k": "a"}]), json!([null, "a", "b"])),
            (json!([{"k": 10}, {"k": 9}]), json!([9, 10])),
            (json!([{"k": "1Gi"}, {"k": "64Mi"}, {"k": "2Ki"}]), json!(["2Ki", "64Mi", "1Gi"])),
            (
                json!([{"k": "2026-01-02T00:00:00Z"}, {"k": "2026-01-01T00:00:00Z"}]),
                json!(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
            ),
        ] {
            assert_eq!(sorted(values.clone()).unwrap(), order, "{values}");
        }
    }

    #[test]
    fn a_field_that_no_object_has_is_refused() {
        let sentence = sorted(json!([{"a": 1}])).unwrap_err().to_string();
        assert_eq!(sentence, "`{.k}` does not fit: no object has such a field");
    }
}
