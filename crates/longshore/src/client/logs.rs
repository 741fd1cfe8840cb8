//! `longshore logs`.

use futures::AsyncReadExt;

use super::session::{Ask, Session, encode};
use super::{ClientError, Logs, Screen};

/// Copies what a container wrote to the screen.
pub(super) async fn logs(
    session: &Session,
    request: Logs,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let namespace = request.namespace.as_deref().unwrap_or_else(|| session.namespace());
    let path = path(namespace, &request);
    let object = format!("the log of pod {}", request.pod);
    let ask = Ask { accept: "*/*", ..Ask::get(&object, path) };
    let mut stream = session.stream(ask).await?;
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = stream.read(&mut buffer).await.map_err(|error| ClientError::Stream {
            object: object.clone(),
            why: error.to_string(),
        })?;
        if read == 0 {
            return Ok(());
        }
        screen.out.write_all(&buffer[..read])?;
        screen.out.flush()?;
    }
}

fn path(namespace: &str, request: &Logs) -> String {
    let Logs {
        pod,
        container,
        follow,
        previous,
        timestamps,
        tail,
        since,
        since_time,
        limit_bytes,
        namespace: _,
    } = request;
    let mut path = format!(
        "/api/v1/namespaces/{}/pods/{}/log?follow={follow}&previous={previous}&timestamps={timestamps}",
        encode(namespace),
        encode(pod),
    );
    let since = since.map(|since| since.as_secs().max(1).to_string());
    let options = [
        ("container", container.clone()),
        ("tailLines", tail.map(|lines| lines.to_string())),
        ("sinceSeconds", since),
        ("sinceTime", since_time.clone()),
        ("limitBytes", limit_bytes.map(|bytes| bytes.to_string())),
    ];
    for (name, value) in options {
        if let Some(value) = value {
            path += &format!("&{name}={}", encode(&value));
        }
    }
    path
}
