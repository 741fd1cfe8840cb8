//! What pods have below their names: binding, eviction, logs.

use bytes::Bytes;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use longshore_core::model::streams::{LogError, LogRequest};
use serde_json::Value;

use super::body::{self, ApiResponse};
use super::objects::{Call, success};
use crate::error::{ApiResult, Cause, Status};

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
        let bounds = LogBounds {
            tail_lines: self.query.number("tailLines")?,
            since_seconds: self.query.number("sinceSeconds")?,
            since_time: self.query.get("sinceTime").map(str::to_owned),
            limit_bytes: self.query.number("limitBytes")?,
        };
        let causes = bounds.wrong();
        if !causes.is_empty() {
            return Err(Status::invalid_kind("", "PodLogOptions", &self.target.name, causes));
        }
        let count = |value: Option<i64>| value.map(|value| usize::try_from(value).unwrap_or(0));
        Ok(LogRequest {
            namespace: self.target.namespace.clone(),
            pod: self.target.name.clone(),
            container: self.query.get("container").map(str::to_owned),
            follow: self.query.flag("follow"),
            previous: self.query.flag("previous"),
            timestamps: self.query.flag("timestamps"),
            since: bounds.since(self.inner.core.env.now())?,
            tail_lines: count(bounds.tail_lines),
            limit_bytes: count(bounds.limit_bytes),
        })
    }
}

/// How much of a log is asked for, as it was written.
#[derive(Debug, Clone, Default)]
struct LogBounds {
    tail_lines: Option<i64>,
    since_seconds: Option<i64>,
    since_time: Option<String>,
    limit_bytes: Option<i64>,
}

impl LogBounds {
    /// What is wrong, in the words of Kubernetes.
    fn wrong(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        let mut at_least = |field: &str, value: Option<i64>, least: i64, why: &str| {
            if let Some(value) = value.filter(|value| *value < least) {
                causes.push(Cause::invalid(field, &Value::from(value), why));
            }
        };
        at_least("tailLines", self.tail_lines, 0, "must be greater than or equal to 0");
        at_least("limitBytes", self.limit_bytes, 1, "must be greater than 0");
        at_least("sinceSeconds", self.since_seconds, 1, "must be greater than 0");
        if self.since_seconds.is_some() && self.since_time.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            causes.push(Cause::forbidden("", why));
        }
        causes
    }

    /// The time from which on lines are shown.
    fn since(&self, now: Timestamp) -> ApiResult<Option<Timestamp>> {
        match (&self.since_time, self.since_seconds) {
            (Some(text), _) => match text.parse() {
                Ok(time) => Ok(Some(time)),
                Err(_) => Err(Status::bad_request(format!("sinceTime {text:?} is no time"))),
            },
            (None, Some(seconds)) => Ok(now.checked_sub(SignedDuration::from_secs(seconds)).ok()),
            (None, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_of_a_log_are_named() {
        let none = LogBounds::default();
        for (request, expected) in [
            (LogBounds { tail_lines: Some(0), limit_bytes: Some(1), ..none.clone() }, &[][..]),
            (LogBounds { tail_lines: Some(-1), ..none.clone() }, &["tailLines"]),
            (LogBounds { limit_bytes: Some(0), ..none.clone() }, &["limitBytes"]),
            (
                LogBounds { since_seconds: Some(0), since_time: Some("x".into()), ..none },
                &["sinceSeconds", ""],
            ),
        ] {
            let fields: Vec<String> =
                request.wrong().iter().map(|cause| cause.field.to_string()).collect();
            assert_eq!(fields, expected, "{request:?}");
        }
    }
    #[test]
    fn lines_are_shown_from_a_time_or_from_so_long_ago() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let of = |since_time: Option<&str>, since_seconds| {
            let since_time = since_time.map(str::to_owned);
            LogBounds { since_time, since_seconds, ..LogBounds::default() }.since(now)
        };
        assert_eq!(of(None, None).unwrap(), None);
        assert_eq!(of(None, Some(60)).unwrap(), Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(of(None, Some(i64::MAX)).unwrap(), None, "since ever");
        let time = "2026-01-01T00:00:30Z";
        assert_eq!(of(Some(time), None).unwrap(), Some(time.parse().unwrap()));
        assert_eq!(of(Some("noon"), None).unwrap_err().message, "sinceTime \"noon\" is no time");
    }
}
