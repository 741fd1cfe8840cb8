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
    let mut path = format!(
        "/api/v1/namespaces/{}/pods/{}/log?follow={}",
        encode(namespace),
        encode(&request.pod),
        request.follow
    );
    if let Some(container) = &request.container {
        path += &format!("&container={}", encode(container));
    }
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
