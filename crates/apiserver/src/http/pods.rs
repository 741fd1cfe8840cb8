//! What pods have below their names: binding, eviction, logs.

use bytes::Bytes;
use futures::StreamExt;
use serde_json::Value;

use super::body::{self, ApiResponse};
use super::objects::{Call, success};
use crate::error::{ApiResult, Cause, Status};
use crate::logs::{LogError, LogRequest};

impl Call<'_> {
    pub(super) async fn bind(&self) -> ApiResult<ApiResponse> {
        let options = self.write_options("CreateOptions")?;
        let binding = self.parse_other("Binding")?.value;
        self.inner.core.bind(&self.target, &binding, options.dry_run).await?;
        Ok(body::json(201, &success(Value::Null, Some(201))))
    }

    pub(super) async fn evict(&self) -> ApiResult<ApiResponse> {
        let eviction = self.parse_other("Eviction")?.value;
        let options = self.read_delete_options(&eviction["deleteOptions"])?;
        self.inner.core.evict(&self.target, &options).await?;
        Ok(body::json(201, &success(Value::Null, Some(201))))
    }

    pub(super) async fn log(&self) -> ApiResult<ApiResponse> {
        let request = self.log_request()?;
        let pod = self.inner.core.get(&self.target, None).await?.value();
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            return Ok(body::response(204, "text/plain", Bytes::new()));
        }
        let Some(source) = self.inner.log_source() else {
            return Err(Status::unavailable("no node of this server serves container logs"));
        };
        match source.open(request).await {
            Ok(chunks) => {
                let closed = self.ending.clone();
                let chunks = chunks.take_until(async move { closed.cancelled().await });
                Ok(body::stream("text/plain", chunks))
            }
            Err(LogError::BadRequest(why)) => Err(Status::bad_request(why)),
            Err(LogError::NoNode(why)) => Err(Status::unavailable(why)),
            Err(LogError::Failed(why)) => Err(Status::internal(why)),
        }
    }

    fn log_request(&self) -> ApiResult<LogRequest> {
        let request = LogRequest {
            namespace: self.target.namespace.clone(),
            pod: self.target.name.clone(),
            container: self.query.get("container").map(str::to_owned),
            follow: self.query.flag("follow"),
            previous: self.query.flag("previous"),
            timestamps: self.query.flag("timestamps"),
            tail_lines: self.query.number("tailLines")?,
            since_seconds: self.query.number("sinceSeconds")?,
            since_time: self.query.get("sinceTime").map(str::to_owned),
            limit_bytes: self.query.number("limitBytes")?,
        };
        let causes = wrong_options(&request);
        if !causes.is_empty() {
            return Err(Status::invalid_kind("", "PodLogOptions", &self.target.name, causes));
        }
        Ok(request)
    }
}

/// What is wrong with the options of a log, in the words of Kubernetes.
fn wrong_options(request: &LogRequest) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut at_least = |field: &str, value: Option<i64>, least: i64, why: &str| {
        if let Some(value) = value.filter(|value| *value < least) {
            causes.push(Cause::invalid(field, &Value::from(value), why));
        }
    };
    at_least("tailLines", request.tail_lines, 0, "must be greater than or equal to 0");
    at_least("limitBytes", request.limit_bytes, 1, "must be greater than 0");
    at_least("sinceSeconds", request.since_seconds, 1, "must be greater than 0");
    if request.since_seconds.is_some() && request.since_time.is_some() {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        causes.push(Cause::forbidden("", why));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_of_a_log_are_named() {
        let none = LogRequest::default();
        for (request, expected) in [
            (LogRequest { tail_lines: Some(0), limit_bytes: Some(1), ..none.clone() }, &[][..]),
            (LogRequest { tail_lines: Some(-1), ..none.clone() }, &["tailLines"]),
            (LogRequest { limit_bytes: Some(0), ..none.clone() }, &["limitBytes"]),
            (
                LogRequest { since_seconds: Some(0), since_time: Some("x".into()), ..none },
                &["sinceSeconds", ""],
            ),
        ] {
            let fields: Vec<String> =
                wrong_options(&request).iter().map(|cause| cause.field.to_string()).collect();
            assert_eq!(fields, expected, "{request:?}");
        }
    }
}
