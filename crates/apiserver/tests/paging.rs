//! Long lists in pages: one moment in time as long as history reaches back, and an honest 410 after.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, ObjectList, PostParams, WatchEvent, WatchParams};
use kube::core::Status;
use longshore_apiserver::{ApiServer, Config, Limits};
use serde_json::json;

const HISTORY: usize = 30;

fn small(config: Config) -> Config {
    Config { limits: Limits { history_events: HISTORY, ..Limits::default() }, ..config }
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

async fn create(maps: &Api<ConfigMap>, name: &str) {
    maps.create(&PostParams::default(), &map(name, "1")).await.unwrap();
}

async fn change(maps: &Api<ConfigMap>, name: &str, value: &str) {
    maps.replace(name, &PostParams::default(), &map(name, value)).await.unwrap();
}

/// Twenty objects, `a00` to `a19`.
async fn filled(server: &ApiServer) -> Api<ConfigMap> {
    let maps = Api::namespaced(server.client(), "default");
    for i in 0..20 {
        create(&maps, &format!("a{i:02}")).await;
    }
    maps
}

async fn page(maps: &Api<ConfigMap>, limit: u32, token: &str) -> ObjectList<ConfigMap> {
    let mut params = ListParams::default().limit(limit);
    if !token.is_empty() {
        params = params.continue_token(token);
    }
    maps.list(&params).await.unwrap()
}

fn next(list: &ObjectList<ConfigMap>) -> String {
    list.metadata.continue_.clone().unwrap_or_default()
}

fn names(list: &ObjectList<ConfigMap>) -> Vec<String> {
    list.iter()
        .map(|map| format!("{}={}", map.name_any(), map.data.as_ref().unwrap()["k"]))
        .collect()
}

fn originals(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|i| format!("a{i:02}=1")).collect()
}

async fn refusal(maps: &Api<ConfigMap>, token: &str) -> Status {
    match maps.list(&ListParams::default().limit(5).continue_token(token)).await {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("{other:?}"),
    }
}

/// Changes something in what was not listed yet: one is changed, one goes, one comes.
async fn disturb(maps: &Api<ConfigMap>) {
    change(maps, "a10", "2").await;
    change(maps, "a10", "3").await;
    maps.delete("a11", &DeleteParams::default()).await.unwrap();
    create(maps, "a115").await;
    maps.delete("a19", &DeleteParams::default()).await.unwrap();
    create(maps, "a19").await;
    change(maps, "a19", "4").await;
    create(maps, "b").await;
}

#[tokio::test]
async fn pages_show_one_revision() {
    let server = ApiServer::open(small(Config::deterministic(1))).await.unwrap();
    let maps = filled(&server).await;
    let first = page(&maps, 5, "").await;
    assert_eq!(first.metadata.remaining_item_count, Some(15));
    disturb(&maps).await;
    let second = page(&maps, 5, &next(&first)).await;
    assert_eq!(names(&second), originals(5..10));
    // A token can be used again, and the size of the pages may change.
    assert_eq!(names(&page(&maps, 5, &next(&first)).await), originals(5..10));
    let rest = page(&maps, 500, &next(&second)).await;
    assert_eq!(names(&rest), originals(10..20));
    for list in [&second, &rest] {
        assert_eq!(list.metadata.resource_version, first.metadata.resource_version);
    }
    assert_eq!(next(&rest), "");
}

#[tokio::test]
async fn an_old_token_offers_to_go_on_at_the_current_version() {
    let server = ApiServer::open(small(Config::deterministic(1))).await.unwrap();
    let maps = filled(&server).await;
    let first = page(&maps, 5, "").await;
    let start = first.metadata.resource_version.clone().unwrap();
    disturb(&maps).await;
    for i in 0..HISTORY {
        change(&maps, "a00", &format!("x{i}")).await;
    }
    let status = refusal(&maps, &next(&first)).await;
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"), "{status:?}");
    let token = status.metadata.unwrap().continue_.unwrap();
    // Also much later: this token is for whatever is current.
    for i in 0..HISTORY {
        change(&maps, "a01", &format!("y{i}")).await;
    }
    let second = page(&maps, 6, &token).await;
    let mut wanted = originals(5..10);
    wanted.push("a10=3".into());
    assert_eq!(names(&second), wanted);
    let now = second.metadata.resource_version.clone().unwrap();
    assert!(now.parse::<u64>().unwrap() > start.parse::<u64>().unwrap());
    // From there on the pages show one moment again.
    change(&maps, "a12", "late").await;
    let rest = page(&maps, 500, &next(&second)).await;
    assert_eq!(rest.metadata.resource_version, Some(now));
    let mut wanted = vec!["a115=1".to_owned()];
    wanted.extend(originals(12..19));
    wanted.extend(["a19=4".to_owned(), "b=1".to_owned()]);
    assert_eq!(names(&rest), wanted);

    // A watch from that far back is told so, inside the stream.
    let events = maps.watch(&WatchParams::default(), &start).await.unwrap();
    let events: Vec<WatchEvent<ConfigMap>> = events.boxed().try_collect().await.unwrap();
    assert!(
        matches!(events.as_slice(), [WatchEvent::Error(status)] if status.code == 410),
        "{events:?}"
    );
}

#[tokio::test]
async fn tokens_that_were_never_given_out_are_refused() {
    use base64::Engine;
    let server = ApiServer::open(small(Config::deterministic(1))).await.unwrap();
    let maps = filled(&server).await;
    let forge = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let future = forge(r#"{"rv":999999,"after":["default","a05"]}"#);
    let negative = forge(r#"{"rv":-1,"after":["default","a05"]}"#);
    for token in ["x", "!!", &forge("{}"), &future, &negative] {
        assert_eq!(refusal(&maps, token).await.code, 400, "{token}");
    }
}

#[tokio::test]
async fn pages_and_watches_go_on_after_a_restart() {
    let dir = tempfile::Builder::new().prefix("longshore-paging-").tempdir().unwrap();
    let config = || small(Config::at(dir.path()));
    let server = ApiServer::open(config()).await.unwrap();
    let maps = filled(&server).await;
    let first = page(&maps, 5, "").await;
    disturb(&maps).await;
    server.shutdown().await;
    drop((server, maps));

    let server = ApiServer::open(config()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    assert_eq!(names(&page(&maps, 500, &next(&first)).await), originals(5..20));
    let start = first.metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default(), &start).await.unwrap().boxed();
    let mut seen = Vec::new();
    while seen.len() < 8 {
        seen.push(match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(map) => format!("+{}", map.name_any()),
            WatchEvent::Modified(map) => format!("~{}", map.name_any()),
            WatchEvent::Deleted(map) => format!("-{}", map.name_any()),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(seen, ["~a10", "~a10", "-a11", "+a115", "-a19", "+a19", "~a19", "+b"]);
    server.shutdown().await;
}
