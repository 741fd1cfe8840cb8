//! What pods have below their names: binding, eviction, logs.

use bytes::Bytes;
use futures::StreamExt;
use serde_json::Value;

use super::body::{self, ApiResponse};
use super::objects::{Call, success};
use crate::error::{ApiResult, Status};
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
        let pod = self.inner.core.get(&self.target, None).await?.value();
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            return Ok(body::response(204, "text/plain", Bytes::new()));
        }
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
            Err(LogError::Failed(why)) => Err(Status::internal(why)),
        }
    }
}
