//! `/metrics`: upstream's names and labels, in a form that a scraper can read.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use futures::StreamExt;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use longshore_apiserver::{ApiServer, Config};
use serde_json::json;

/// One sample: its labels and its value.
type Sample = (BTreeMap<String, String>, f64);

/// A read exposition.
#[derive(Default)]
struct Exposition {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<String, Vec<Sample>>,
}

impl Exposition {
    /// Reads the text format, and complains about everything that is not in order.
    fn read(text: &str) -> Self {
        let mut all = Self::default();
        let mut seen = std::collections::BTreeSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect(line);
                assert!(!help.is_empty(), "{line}");
                current = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                assert_eq!(name, current, "a type follows its help: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                let twice = all.kinds.insert(name.to_owned(), kind.to_owned());
                assert!(twice.is_none(), "{name} stands there twice");
            } else {
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "twice: {line}");
                let (name, sample) = read_sample(line);
                assert!(name.starts_with(&current), "{line} belongs to {current}");
                all.samples.entry(name).or_default().push(sample);
            }
        }
        all
    }

    /// The value of the one sample with these labels among its own.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let samples = self.samples.get(name).unwrap_or_else(|| panic!("no {name}"));
        let fits = |sample: &&Sample| {
            labels.iter().all(|(key, value)| sample.0.get(*key).is_some_and(|v| v == value))
        };
        let found: Vec<&Sample> = samples.iter().filter(fits).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].1
    }

    fn label_names(&self, name: &str) -> Vec<&str> {
        let names = |sample: &'_ Sample| -> Vec<String> { sample.0.keys().cloned().collect() };
        let samples = &self.samples[name];
        for sample in samples {
            assert_eq!(names(sample), names(&samples[0]), "{name} always has the same labels");
        }
        samples[0].0.keys().map(String::as_str).collect()
    }
}

fn read_sample(line: &str) -> (String, Sample) {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let value: f64 = value.parse().expect(line);
    assert!(value >= 0.0, "{line}");
    let Some((name, rest)) = series.split_once('{') else {
        return (series.to_owned(), (BTreeMap::new(), value));
    };
    let labels = rest.strip_suffix('}').expect(line);
    let mut read = BTreeMap::new();
    for pair in labels.split(',').filter(|pair| !pair.is_empty()) {
        let (key, text) = pair.split_once('=').expect(line);
        let text = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).expect(line);
        assert!(read.insert(key.to_owned(), text.to_owned()).is_none(), "{line}");
    }
    (name.to_owned(), (read, value))
}

async fn raw(client: &Client, method: &str, path: &str) -> (http::response::Parts, String) {
    let request = http::Request::builder().method(method).uri(path);
    let request = request.body(kube::client::Body::empty()).unwrap();
    let (parts, body) = client.send(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts, String::from_utf8(body.to_vec()).unwrap())
}

async fn scrape(client: &Client) -> Exposition {
    let (parts, text) = raw(client, "GET", "/metrics").await;
    assert_eq!(parts.status, 200);
    let kind = parts.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    Exposition::read(&text)
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

/// What configmaps of a namespace are labelled with.
fn labels<'a>(verb: &'a str, scope: &'a str, dry: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("verb", verb),
        ("group", ""),
        ("version", "v1"),
        ("resource", "configmaps"),
        ("subresource", ""),
        ("scope", scope),
        ("dry_run", dry),
        ("component", "apiserver"),
    ]
}

#[tokio::test]
async fn requests_are_counted_by_what_they_ask_for() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let params = PostParams::default();
    for name in ["a", "b", "c"] {
        maps.create(&params, &map(name)).await.unwrap();
    }
    assert!(maps.create(&params, &map("a")).await.is_err());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &map("d")).await.unwrap();
    maps.list(&ListParams::default()).await.unwrap();
    let merge = Patch::Merge(json!({"data": {"k": "v"}}));
    maps.patch("a", &PatchParams::default(), &merge).await.unwrap();
    let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a"}, "data": {"x": "y"}}));
    maps.patch("a", &PatchParams::apply("me").force(), &apply).await.unwrap();
    maps.delete("c", &DeleteParams::default()).await.unwrap();
    Api::<ConfigMap>::all(client.clone()).list(&ListParams::default()).await.unwrap();

    let seen = scrape(&client).await;
    let total = |verb, scope, dry, code| {
        let mut wanted = labels(verb, scope, dry);
        wanted.push(("code", code));
        seen.value("apiserver_request_total", &wanted)
    };
    assert_eq!(total("POST", "resource", "", "201"), 3.0);
    assert_eq!(total("POST", "resource", "", "409"), 1.0);
    assert_eq!(total("POST", "resource", "All", "201"), 1.0);
    assert_eq!(total("LIST", "namespace", "", "200"), 1.0);
    assert_eq!(total("LIST", "cluster", "", "200"), 1.0);
    assert_eq!(total("PATCH", "resource", "", "200"), 1.0);
    assert_eq!(total("APPLY", "resource", "", "200"), 1.0);
    assert_eq!(total("DELETE", "resource", "", "200"), 1.0);
    let names = ["code", "component", "dry_run", "group", "resource", "scope", "subresource"];
    let names: Vec<&str> = names.into_iter().chain(["verb", "version"]).collect();
    assert_eq!(seen.label_names("apiserver_request_total"), names);

    // Durations: growing buckets that end with the count.
    let name = "apiserver_request_duration_seconds";
    let post = labels("POST", "resource", "");
    assert_eq!(seen.kinds[name], "histogram");
    assert_eq!(seen.value(&format!("{name}_count"), &post), 4.0);
    let mut before = 0.0;
    let mut ends = 0;
    for (found, count) in &seen.samples[&format!("{name}_bucket")] {
        if post.iter().all(|(key, value)| found[*key] == *value) {
            assert!(*count >= before, "{found:?}");
            (before, ends) = (*count, ends + 1);
        }
    }
    assert_eq!((before, ends), (4.0, 24));
    assert!(seen.value(&format!("{name}_sum"), &post) >= 0.0);

    // The store: what is in it, and how long writes took.
    assert_eq!(seen.value("apiserver_storage_objects", &[("resource", "configmaps")]), 2.0);
    let roles = seen.value(
        "apiserver_resource_objects",
        &[("group", "rbac.authorization.k8s.io"), ("resource", "clusterroles")],
    );
    let qualified = [("resource", "clusterroles.rbac.authorization.k8s.io")];
    assert_eq!(seen.value("apiserver_storage_objects", &qualified), roles);
    // The creation that found its name taken was an attempt too.
    for (operation, count) in [("create", 4.0), ("update", 2.0), ("delete", 1.0)] {
        let wanted = [("operation", operation), ("group", ""), ("resource", "configmaps")];
        assert_eq!(
            seen.value("etcd_request_duration_seconds_count", &wanted),
            count,
            "{operation}"
        );
    }
}

#[tokio::test]
async fn long_running_requests_are_counted_while_they_are_open() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut watch = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    for name in ["a", "b"] {
        maps.create(&PostParams::default(), &map(name)).await.unwrap();
        watch.next().await.unwrap().unwrap();
    }
    let name = "apiserver_longrunning_requests";
    let wanted = [("verb", "WATCH"), ("resource", "configmaps"), ("scope", "namespace")];
    let seen = scrape(&client).await;
    assert_eq!(seen.value(name, &wanted), 1.0);
    assert_eq!(seen.value("apiserver_watch_events_total", &[("resource", "configmaps")]), 2.0);
    let names = ["component", "group", "resource", "scope", "subresource", "verb", "version"];
    assert_eq!(seen.label_names(name), names);
    // The request for the metrics itself is the only one under way.
    let current = "apiserver_current_inflight_requests";
    assert_eq!(seen.value(current, &[("request_kind", "readOnly")]), 1.0);
    assert_eq!(seen.value(current, &[("request_kind", "mutating")]), 0.0);
    drop(watch);
    assert_eq!(scrape(&client).await.value(name, &wanted), 0.0);
    // A watch has no duration: it would drown all others.
    let durations = &seen.samples["apiserver_request_duration_seconds_count"];
    assert!(durations.iter().all(|(labels, _)| labels["verb"] != "WATCH"));
}

#[tokio::test]
async fn unknown_paths_and_kinds_make_no_series() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    let lines = async |client: &Client| raw(client, "GET", "/metrics").await.1.lines().count();
    let odd = |number: usize| {
        [
            ("GET", format!("/api/v1/namespaces/n{number}/things{number}")),
            ("GET", format!("/apis/group{number}.io/v{number}/things")),
            ("GET", format!("/api/v1/namespaces/default/pods/p{number}/sub{number}")),
            ("GET", format!("/nothing{number}")),
            ("GET", format!("/healthz/{number}")),
            ("GET", format!("/openapi/v3/apis/{number}")),
            ("GET", format!("/api/v1/namespaces/n{number}/pods/p{number}")),
        ]
    };
    for (method, path) in odd(0) {
        raw(&client, method, &path).await;
    }
    lines(&client).await;
    let before = lines(&client).await;
    for number in 1..50 {
        for (method, path) in odd(number) {
            raw(&client, method, &path).await;
        }
        raw(&client, &format!("METHOD{number}"), "/api/v1/pods").await;
    }
    // One more set of series: that of unknown methods.
    let after = lines(&client).await;
    assert!(after < before + 60, "{before} {after}");
}

#[tokio::test]
async fn the_process_is_described_and_only_those_who_may_see_it() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let seen = scrape(&server.client()).await;
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_virtual_memory_bytes",
        "process_max_fds",
        "process_start_time_seconds",
    ] {
        assert!(seen.value(name, &[]) > 0.0 || name.starts_with("process_cpu"), "{name}");
    }
    let started = seen.value("process_start_time_seconds", &[]);
    let now = jiff::Timestamp::now().as_second() as f64;
    assert!((now - 86_400.0..=now + 60.0).contains(&started), "{started} {now}");
    let jane = server.client_as("jane", ["system:authenticated"]);
    assert_eq!(raw(&jane, "GET", "/metrics").await.0.status, 403);
    let admin = server.client();
    let role = json!({"metadata": {"name": "scrape"},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    let binding = json!({"metadata": {"name": "scrape"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scrape"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]});
    for (plural, body) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{plural}");
        let request = http::Request::post(path).header("Content-Type", "application/json");
        let request = request.body(body.to_string().into_bytes().into()).unwrap();
        assert_eq!(admin.send(request).await.unwrap().status(), 201);
    }
    scrape(&jane).await;
}

/// Every family: name, type, help.
const FAMILIES: &[(&str, &str, &str)] = &[
    (
        "apiserver_request_total",
        "counter",
        "Counter of apiserver requests, by code and what they ask for.",
    ),
    (
        "apiserver_request_duration_seconds",
        "histogram",
        "Response latency in seconds; requests that last are left out.",
    ),
    (
        "apiserver_current_inflight_requests",
        "gauge",
        "Requests being answered now; those that last are left out.",
    ),
    ("apiserver_dropped_requests_total", "counter", "Requests refused for want of a place."),
    ("apiserver_longrunning_requests", "gauge", "Watches and followed logs that are open."),
    ("apiserver_watch_events_total", "counter", "Events sent in watches."),
    (
        "etcd_request_duration_seconds",
        "histogram",
        "Time until a write was durable in the embedded store, which stands in for etcd.",
    ),
    ("apiserver_storage_objects", "gauge", "Stored objects, by qualified resource."),
    ("apiserver_resource_objects", "gauge", "Stored objects, by group and resource."),
    (
        "longshore_apiserver_store_bytes",
        "gauge",
        "What the stored objects take of the limit, in bytes.",
    ),
    (
        "longshore_apiserver_store_limit_bytes",
        "gauge",
        "What the stored objects may take (--store-limit); 0: no limit.",
    ),
    (
        "longshore_apiserver_store_resource_bytes",
        "gauge",
        "What the stored objects take, by group and resource.",
    ),
    ("longshore_store_revision", "gauge", "Newest revision of the store."),
    (
        "pod_security_evaluations_total",
        "counter",
        "Number of policy evaluations that occurred, not counting ignored or exempt requests.",
    ),
    ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
    ("process_max_fds", "gauge", "Maximum number of open file descriptors."),
    ("process_open_fds", "gauge", "Number of open file descriptors."),
    ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    (
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    ),
    ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
];

#[tokio::test]
async fn families_buckets_and_labels_are_those_that_dashboards_know() {
    let server = ApiServer::open(Config::memory()).await.unwrap();
    let client = server.client();
    raw(&client, "GET", "/api/v1/namespaces").await;
    let (_, text) = raw(&client, "GET", "/metrics").await;
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let wanted = FAMILIES.iter().flat_map(|(name, kind, help)| {
        [format!("# HELP {name} {help}"), format!("# TYPE {name} {kind}")]
    });
    assert_eq!(heads, wanted.collect::<Vec<_>>());

    let list = "component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"namespaces\",\
                scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"";
    let total = format!("apiserver_request_total{{code=\"200\",{list}}} 1");
    assert!(text.lines().any(|line| line == total), "{text}");
    let start = format!("apiserver_request_duration_seconds_bucket{{{list},le=\"");
    let ends = text.lines().filter_map(|line| line.strip_prefix(&start)?.split('"').next());
    let wanted = [
        "0.005", "0.025", "0.05", "0.1", "0.2", "0.4", "0.6", "0.8", "1", "1.25", "1.5", "2", "3",
        "4", "5", "6", "8", "10", "15", "20", "30", "45", "60", "+Inf",
    ];
    assert_eq!(ends.collect::<Vec<_>>(), wanted);
    assert!(text.contains("\nlongshore_apiserver_store_limit_bytes "), "{text}");
}
