//! Answers that nobody reads, and connections that nobody uses.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{MAPS, Target, set_off};

async fn fill(target: &Target, megabytes: usize) {
    for i in 0..megabytes {
        let map =
            json!({"metadata": {"name": format!("m{i}")}, "data": {"a": "x".repeat(1_000_000)}});
        assert_eq!(target.create(MAPS, &map).await, 201);
    }
}

async fn unread(target: &Target, path: &str, accept: &str, times: usize) {
    let token = target.server.token();
    let mut open = Vec::new();
    for _ in 0..times {
        let mut stream = target.server.connect().await;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nAccept: {accept}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut some = [0; 15];
        stream.read_exact(&mut some).await.unwrap();
        assert_eq!(&some, b"HTTP/1.1 200 OK");
        open.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_lists_take_no_memory() {
    set_off("unread lists", async |target| {
        fill(target, 40).await;
        unread(target, MAPS, "application/json", 60).await;
        unread(target, &format!("{MAPS}?watch=1"), "application/json", 60).await;
        unread(target, &format!("{MAPS}/m1"), "application/json", 60).await;
        unread(target, &format!("{MAPS}?includeObject=Object"), TABLE, 30).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_requests_of_strangers_lock_no_client_out() {
    set_off("half requests", async |target| {
        let mut open = Vec::new();
        for _ in 0..500 {
            let mut stream = target.server.connect().await;
            let _ = stream.write_all(b"GET /api HTTP/1.1\r\nHost:").await;
            open.push(stream);
        }
        // Who comes now gets in, again and again.
        for _ in 0..20 {
            let mut stream = target.server.connect().await;
            let token = target.server.token();
            let head =
                format!("GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut some = [0; 15];
            stream.read_exact(&mut some).await.unwrap();
            assert_eq!(&some, b"HTTP/1.1 200 OK");
        }
    })
    .await;
}
