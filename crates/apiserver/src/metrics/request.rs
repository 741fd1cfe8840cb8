//! What a request asks for, as labels.

use http::Method;

use crate::http::route::{Object, Route};
use crate::registry::Registry;

/// Labels of a request. All texts are the server's own, never the client's.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    verb: &'static str,
    dry_run: bool,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

impl Request {
    /// The labels of a request; `verb` as authorization names it.
    pub fn of(method: &Method, route: &Route<'_>, verb: &str, apply: bool, dry_run: bool) -> Self {
        let Route::Object(_) = route else {
            return Self {
                verb: method_verb(method),
                subresource: page(route).to_owned(),
                ..Self::default()
            };
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
        Self { verb, dry_run, component: "apiserver", ..Self::default() }
    }

    /// Adds what is asked for, if it is served; what is not served is one series.
    pub fn about(mut self, registry: &Registry, object: &Object<'_>) -> Self {
        let Some(resource) = registry.find(object.group, object.version, object.plural) else {
            return self;
        };
        if !object.subresource.is_empty() {
            match resource.subresource(object.subresource) {
                Some(sub) => self.subresource = sub.name.to_owned(),
                None => return self,
            }
        }
        self.group.clone_from(&resource.group);
        self.version.clone_from(&resource.version);
        self.resource.clone_from(&resource.plural);
        self.scope = match (&object.namespace, object.name.is_empty()) {
            (_, false) => "resource",
            _ if self.verb == "POST" => "resource",
            (Some(_), true) => "namespace",
            (None, true) => "cluster",
        };
        self
    }

    /// The labels without braces. Their values hold nothing that would have to be escaped.
    pub fn labels(&self, dry_run: bool) -> String {
        let Self { verb, group, version, resource, subresource, scope, component, .. } = self;
        let mut text = format!("component=\"{component}\",");
        if dry_run {
            let value = if self.dry_run { "All" } else { "" };
            text.push_str(&format!("dry_run=\"{value}\","));
        }
        text.push_str(&format!(
            "group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
             subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
        ));
        text
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
        Route::OpenApiSecond => "/openapi/v2",
        Route::OpenApiIndex | Route::OpenApi(_) => "/openapi/v3",
        Route::Object(_) | Route::Unknown => "",
    }
}
