//! What a path means.

use super::query::percent_decode;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/healthz`, `/livez`, `/readyz`, with the name of a single check.
    Health(Option<&'a str>),
    /// `/version`.
    Version,
    /// `/metrics`.
    Metrics,
    /// `/`.
    Root,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/<group>`.
    Group(&'a str),
    /// `/api/v1`, `/apis/<group>/<version>`.
    Resources(&'a str, &'a str),
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`.
    OpenApiIndex,
    /// `/openapi/v3/<path>`.
    OpenApi(&'a str),
    /// An object or a collection.
    Object(Object<'a>),
    /// Nothing we know.
    Unknown,
}

/// Path of an object or a collection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object<'a> {
    /// Group, empty for core.
    pub group: &'a str,
    pub version: &'a str,
    /// Name of the resource.
    pub plural: &'a str,
    /// Namespace, if the path has one.
    pub namespace: Option<String>,
    /// Name, empty for collections.
    pub name: String,
    /// Subresource, empty for none.
    pub subresource: &'a str,
    /// Whether this is one of the old `/watch/` paths.
    pub watch: bool,
}

pub(crate) fn parse(path: &str) -> Route<'_> {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    match parts.as_slice() {
        [] => Route::Root,
        ["healthz" | "livez" | "readyz"] => Route::Health(None),
        ["healthz" | "livez" | "readyz", check] => Route::Health(Some(check)),
        ["version"] => Route::Version,
        ["metrics"] => Route::Metrics,
        ["api"] => Route::CoreVersions,
        ["apis"] => Route::Groups,
        ["apis", group] => Route::Group(group),
        ["api", version] => Route::Resources("", version),
        ["apis", group, version] => Route::Resources(group, version),
        ["openapi", "v2"] => Route::OpenApiV2,
        ["openapi", "v3"] => Route::OpenApiIndex,
        ["openapi", "v3", ..] => {
            let at = path.find("/v3/").map_or(path.len(), |i| i + 4);
            Route::OpenApi(path[at..].trim_end_matches('/'))
        }
        ["api", version, rest @ ..] => object("", version, rest),
        ["apis", group, version, rest @ ..] => object(group, version, rest),
        _ => Route::Unknown,
    }
}

fn object<'a>(group: &'a str, version: &'a str, parts: &[&'a str]) -> Route<'a> {
    let (watch, parts) = match parts {
        ["watch", rest @ ..] => (true, rest),
        all => (false, all),
    };
    let make = |namespace: Option<&str>, plural, name: &str, subresource| {
        Route::Object(Object {
            group,
            version,
            plural,
            namespace: namespace.map(percent_decode),
            name: percent_decode(name),
            subresource,
            watch,
        })
    };
    match parts {
        // Below a namespace stand its subresources, or resources in it.
        ["namespaces", name] => make(None, "namespaces", name, ""),
        ["namespaces", name, sub @ ("status" | "finalize")] => make(None, "namespaces", name, sub),
        ["namespaces", namespace, plural] => make(Some(namespace), plural, "", ""),
        ["namespaces", namespace, plural, name] => make(Some(namespace), plural, name, ""),
        ["namespaces", namespace, plural, name, sub] => make(Some(namespace), plural, name, sub),
        [plural] => make(None, plural, "", ""),
        [plural, name] => make(None, plural, name, ""),
        [plural, name, sub] => make(None, plural, name, sub),
        _ => Route::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object_of(path: &str) -> (String, String, String, String, bool) {
        match parse(path) {
            Route::Object(o) => (
                o.plural.into(),
                o.namespace.unwrap_or_default(),
                o.name,
                o.subresource.into(),
                o.watch,
            ),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn paths_lead_to_their_route() {
        let row =
            |a: &str, b: &str, c: &str, d: &str, e| (a.into(), b.into(), c.into(), d.into(), e);
        let rows = [
            ("/api/v1/pods", row("pods", "", "", "", false)),
            ("/api/v1/namespaces/n/pods", row("pods", "n", "", "", false)),
            ("/api/v1/namespaces/n/pods/p/log", row("pods", "n", "p", "log", false)),
            ("/api/v1/namespaces/n", row("namespaces", "", "n", "", false)),
            ("/api/v1/namespaces/n/status", row("namespaces", "", "n", "status", false)),
            ("/api/v1/nodes/x/status", row("nodes", "", "x", "status", false)),
            ("/api/v1/watch/namespaces/n/pods/p", row("pods", "n", "p", "", true)),
            (
                "/apis/storage.k8s.io/v1/storageclasses/a%20b",
                row("storageclasses", "", "a b", "", false),
            ),
        ];
        for (path, wanted) in rows {
            assert_eq!(object_of(path), wanted, "{path}");
        }
        assert_eq!(
            parse("/openapi/v3/apis/storage.k8s.io/v1"),
            Route::OpenApi("apis/storage.k8s.io/v1")
        );
        assert_eq!(parse("/nope"), Route::Unknown);
        assert_eq!(parse("/readyz/ping"), Route::Health(Some("ping")));
    }
}
