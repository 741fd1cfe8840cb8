//! Deletion of objects and collections.

use std::sync::Arc;

use serde_json::{Value, json};

use super::body::{self, ApiResponse};
use super::negotiate::Shape;
use super::objects::{Call, success, whole};
use crate::error::{ApiResult, Cause, Causes, Status, object_details};
use crate::ops::{DeleteOptions, Deleted, Propagation, Target};

impl Call<'_> {
    pub(super) async fn delete(&self) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::Single)?;
        let options = self.delete_options()?;
        let resource = &self.target.resource;
        let returned = resource.traits().returns_deleted;
        match self.inner.core.delete(&self.target, &options).await? {
            Deleted::Removed(object) if !returned => {
                let mut details =
                    object_details(&resource.group, &resource.plural, &self.target.name);
                details["uid"] = object.value()["metadata"]["uid"].clone();
                Ok(body::json(200, &success(details, None)))
            }
            Deleted::Removed(object) | Deleted::Marked(object) => {
                Ok(whole(200, renderer.object(&object)))
            }
        }
    }

    pub(super) async fn delete_collection(&self) -> ApiResult<ApiResponse> {
        let renderer = self.renderer(Shape::List)?;
        let options = self.delete_options()?;
        let select = self.query.list_options(&self.target.resource)?;
        let listed = self.inner.core.list(&self.target, &select).await?;
        for object in &listed.objects {
            let one = Target {
                resource: Arc::clone(&self.target.resource),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            };
            match self.inner.core.delete(&one, &options).await {
                Ok(_) => {}
                // Another client was faster.
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        Ok(body::pieces(200, renderer.list(listed)))
    }

    /// Options may stand in the body or in the query; the body wins.
    pub(super) fn delete_options(&self) -> ApiResult<DeleteOptions> {
        let sent = if self.body.is_empty() {
            body::empty()
        } else {
            self.parse_other("DeleteOptions")?.value
        };
        let kind = sent["kind"].as_str().unwrap_or("DeleteOptions");
        if kind != "DeleteOptions" {
            let version = sent["apiVersion"].as_str().unwrap_or_default();
            return Err(Status::bad_request(format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
            )));
        }
        self.read_delete_options(&sent)
    }

    pub(super) fn read_delete_options(&self, sent: &Value) -> ApiResult<DeleteOptions> {
        let mut causes = Causes::new();
        let text = |name: &str| {
            sent[name]
                .as_str()
                .map(str::to_owned)
                .or_else(|| self.query.get(name).map(str::to_owned))
        };
        let propagation = match text("propagationPolicy").as_deref() {
            None => None,
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                causes.push(Cause::not_supported("propagationPolicy", other, &known));
                None
            }
        };
        let orphan = sent["orphanDependents"]
            .as_bool()
            .or_else(|| self.query.get("orphanDependents").map(|value| value == "true"));
        if orphan.is_some() && text("propagationPolicy").is_some() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            causes.push(Cause::invalid(
                "propagationPolicy",
                &json!(text("propagationPolicy")),
                why,
            ));
        }
        let dry: Vec<String> = match sent["dryRun"].as_array() {
            Some(list) => list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect(),
            None => self.query.all("dryRun").map(str::to_owned).collect(),
        };
        if dry.iter().any(|value| value != "All") {
            causes.push(Cause::not_one_of("dryRun", &json!(dry), &[json!("All")]));
        }
        if !causes.is_empty() {
            return Err(Status::invalid_kind("meta.k8s.io", "DeleteOptions", "", causes));
        }
        let precondition = |field: &str| sent["preconditions"][field].as_str().map(str::to_owned);
        Ok(DeleteOptions {
            dry_run: !dry.is_empty(),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            grace_period_seconds: match sent["gracePeriodSeconds"].as_i64() {
                Some(seconds) => Some(seconds),
                None => self.query.number("gracePeriodSeconds")?,
            },
            propagation: propagation
                .or(orphan.map(|o| if o { Propagation::Orphan } else { Propagation::Background })),
        })
    }
}
