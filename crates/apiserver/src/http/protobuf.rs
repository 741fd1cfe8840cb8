//! Request bodies in Kubernetes protobuf.

use serde_json::Value;

use crate::error::{ApiResult, Status};

/// Decodes a body.
///
/// # Errors
/// 415: not served yet; clients that can send JSON should.
pub fn decode(_body: &[u8]) -> ApiResult<Value> {
    Err(Status::unsupported_media_type("application/json, application/yaml"))
}
