//! `scale`: the number of replicas of a custom resource, apart from the rest.

use serde_json::{Value, json};

use super::{Core, Outcome, Part, Source, Target, WriteOptions};
use crate::crd::scale_of;
use crate::error::{ApiResult, Cause, Status};
use crate::patch::Patch;

impl Core {
    /// Reads the scale of an object.
    ///
    /// # Errors
    /// 404 when the object or its scale is not there.
    pub(crate) async fn scale(&self, target: &Target, version: Option<u64>) -> ApiResult<Value> {
        let object = self.get(target, version).await?.value();
        shown(target, &object)
    }

    /// Changes the number of wanted replicas.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn rescale(
        &self,
        target: &Target,
        source: &Source,
        options: WriteOptions<'_>,
    ) -> ApiResult<Value> {
        let before = self.scale(target, None).await?;
        let wanted = match source {
            Source::Whole { body, .. } => body.clone(),
            Source::Patch(patch) => patch.apply(before.clone())?,
        };
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let why = "should be a non-negative integer";
            let causes = vec![Cause::invalid(".spec.replicas", &json!(replicas), why)];
            return Err(Status::invalid(&target.resource, &target.name, causes));
        }
        let paths = target.resource.custom.as_ref().and_then(|c| c.scale.as_ref());
        let pointer = paths.map(|paths| paths.spec.clone()).ok_or_else(Status::no_such_resource)?;
        let mut patch = json!(replicas);
        for field in pointer.rsplit('/').filter(|field| !field.is_empty()) {
            patch = json!({field: patch});
        }
        if let Some(version) = wanted["metadata"]["resourceVersion"].as_str() {
            patch["metadata"]["resourceVersion"] = json!(version);
        }
        let source = Source::Patch(Patch::Merge(patch));
        let Outcome { written, .. } = self.update(target, Part::Main, &source, options).await?;
        shown(target, &written.value())
    }
}

fn shown(target: &Target, object: &Value) -> ApiResult<Value> {
    let custom = target.resource.custom.as_ref();
    custom.and_then(|custom| scale_of(custom, object)).ok_or_else(Status::no_such_resource)
}
