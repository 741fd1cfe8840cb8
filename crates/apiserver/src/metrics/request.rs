//! What a request asks for, as labels.

use http::Method;
use prometheus_client::encoding::EncodeLabelSet;

use crate::http::route::{Object, Route};
use crate::registry::Registry;

/// Labels of a request. All texts are the server's own, never the client's.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(crate) struct Request {
    component: &'static str,
    /// `All` or nothing.
    dry_run: &'static str,
    #[prometheus(flatten)]
    target: Target,
}

/// What a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Target {
    group: String,
    resource: String,
    scope: &'static str,
    subresource: String,
    verb: &'static str,
    version: String,
}

/// A request and the code of its response.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct Responded {
    pub code: u16,
    #[prometheus(flatten)]
    pub request: Request,
}

/// Labels of a long-running request, which is never a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct LongRunning {
    component: &'static str,
    #[prometheus(flatten)]
    target: Target,
}

impl From<&Request> for LongRunning {
    fn from(request: &Request) -> Self {
        Self { component: request.component, target: request.target.clone() }
    }
}

impl Request {
    /// The labels of a request; `verb` as authorization names it.
    pub(crate) fn of(
        method: &Method,
        route: &Route<'_>,
        verb: &str,
        apply: bool,
        dry_run: bool,
    ) -> Self {
        let Route::Object(_) = route else {
            let (verb, subresource) = (method_verb(method), page(route).to_owned());
            let target = Target { verb, subresource, ..Target::default() };
            return Self { target, ..Self::default() };
        };
        let verb = match verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" => "POST",
            "update" => "PUT",
            "patch" if apply => "APPLY",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            _ => "other",
        };
        let dry_run = if dry_run { "All" } else { "" };
        let target = Target { verb, ..Target::default() };
        Self { component: "apiserver", dry_run, target }
    }

    /// Adds what is asked for, if it is served; what is not served is one series.
    pub(crate) fn about(mut self, registry: &Registry, object: &Object<'_>) -> Self {
        let Some(resource) = registry.find(object.group, object.version, object.plural) else {
            return self;
        };
        let target = &mut self.target;
        if !object.subresource.is_empty() {
            match resource.subresource(object.subresource) {
                Some(sub) => target.subresource = sub.name.to_owned(),
                None => return self,
            }
        }
        target.group.clone_from(&resource.group);
        target.version.clone_from(&resource.version);
        target.resource.clone_from(&resource.plural);
        target.scope = match (&object.namespace, object.name.is_empty()) {
            (_, false) => "resource",
            _ if target.verb == "POST" => "resource",
            (Some(_), true) => "namespace",
            (None, true) => "cluster",
        };
        self
    }
}

fn method_verb(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// Paths beside the resources stand in the label of subresources.
fn page(route: &Route<'_>) -> &'static str {
    match route {
        Route::Health(_) => "/healthz",
        Route::Version => "/version",
        Route::Metrics => "/metrics",
        Route::Root => "/",
        Route::CoreVersions | Route::Groups | Route::Group(_) | Route::Resources(..) => "/apis",
        Route::OpenApiV2 => "/openapi/v2",
        Route::OpenApiIndex | Route::OpenApi(_) => "/openapi/v3",
        Route::Object(_) | Route::Unknown => "",
    }
}
