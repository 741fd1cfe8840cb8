//! Reads Secrets for CSI calls: at each call, decoded once, kept nowhere.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::Secret;

use crate::api::Api;
use crate::error::ApiError;

/// Why a secret cannot be sent to a driver. No variant holds a value.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The Secret does not exist; the text is upstream's.
    #[error("secrets {name:?} not found")]
    NotFound { name: String },
    /// The API gave no secret.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The value is not text, and CSI carries only text.
    #[error("the value of {key:?} is not text")]
    NotText { key: String },
}

/// Reads a secret's values from the API. Each call reads it, so that a rotated secret
/// counts from the next call on. A pass that fails here starts again when the secret changes.
///
/// # Errors
/// When there is no such secret, the API does not show it, or a value is not text.
pub async fn read_secret(
    api: &Api,
    secret: &ObjectKey,
) -> Result<BTreeMap<String, String>, SecretError> {
    let found = api.get::<Secret>(secret).await?;
    let Some(found) = found else {
        api.wake_on_change::<Secret>(secret, None);
        return Err(SecretError::NotFound { name: secret.name.clone() });
    };
    decode(found.data).inspect_err(|_| {
        api.wake_on_change::<Secret>(secret, Some(&found.metadata.resource_version));
    })
}

/// Decodes one value of a Secret; `None` when it is not base64.
#[must_use]
pub fn decode_value(value: &str) -> Option<Vec<u8>> {
    STANDARD.decode(value).ok()
}

fn decode(data: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, SecretError> {
    let decoded = data.into_iter().map(|(key, value)| {
        let text = decode_value(&value).and_then(|bytes| String::from_utf8(bytes).ok());
        match text {
            Some(text) => Ok((key, text)),
            None => Err(SecretError::NotText { key }),
        }
    });
    decoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_base64_of_text_is_decoded_and_no_value_is_shown() {
        let cases: [(&str, &str, Result<&str, &str>); 4] = [
            ("text", "aHVudGVyMg==", Ok("hunter2")),
            ("empty", "", Ok("")),
            ("not base64", "hunter2!", Err("the value of \"key\" is not text")),
            ("not UTF-8", "/v8=", Err("the value of \"key\" is not text")),
        ];
        for (name, value, want) in cases {
            let decoded = decode([("key".to_owned(), value.to_owned())].into());
            let decoded = decoded.map(|data| data["key"].clone()).map_err(|e| e.to_string());
            assert_eq!(decoded.as_deref().map_err(String::as_str), want, "{name}");
        }
    }
}
