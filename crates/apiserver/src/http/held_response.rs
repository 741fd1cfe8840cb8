//! Responses keep their in-flight permit until the client has read them, but not for ever.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::body::{ApiResponse, Body};

/// Pieces of this size are handed out one by one, so that what a client does not take is not
/// copied into the buffers of its connection.
const PIECE_BYTES: usize = 64 << 10;
/// After this much of one response the task yields: what a socket takes at once keeps a worker for as
/// long as its encryption takes.
const TURN_BYTES: usize = 2 * PIECE_BYTES;
/// Unread response chunks stay buffered in the connection; it is closed at this many such responses.
const UNREAD_RESPONSES: usize = 16;

/// Limits how many responses of a connection the client leaves unread.
///
/// HTTP/2 has many responses in flight at once, each with its own window: a client that reads one
/// and leaves the others alone looks alive.
#[derive(Debug)]
pub(super) struct UnreadLimit {
    limit: Duration,
    unread: AtomicUsize,
    exhausted: CancellationToken,
}

impl UnreadLimit {
    /// A response is given up after this long without progress.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, unread: AtomicUsize::new(0), exhausted: CancellationToken::new() }
    }

    /// Waits until so many responses were given up that the connection should close.
    pub(super) async fn exhausted(&self) {
        self.exhausted.cancelled().await;
    }

    fn gave_up(&self) {
        if self.unread.fetch_add(1, Ordering::Relaxed) + 1 >= UNREAD_RESPONSES {
            self.exhausted.cancel();
        }
    }
}

/// Keeps `held` until the client has read the whole response, has left, or, where there is a limit,
/// has stalled for too long.
pub(super) fn hold(
    response: ApiResponse,
    held: impl Send + 'static,
    unread_limit: Option<Arc<UnreadLimit>>,
) -> ApiResponse {
    response.map(|body| {
        let inside =
            Inside { body, rest: Bytes::new(), turn: 0, _held: Box::new(held), handed_out: None };
        HeldBody { inside: Arc::new(Mutex::new(Some(inside))), unread_limit, watchdog: None }
            .boxed_unsync()
    })
}

struct Inside {
    body: Body,
    rest: Bytes,
    /// Bytes handed out since the task last yielded.
    turn: usize,
    _held: Box<dyn Send>,
    /// When a piece was handed out; nothing has been asked for since.
    handed_out: Option<Instant>,
}

impl Inside {
    fn is_end(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.handed_out = None;
        if self.turn >= TURN_BYTES {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            match frame.map(Frame::into_data)? {
                Ok(data) => self.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(piece);
        self.turn += piece.len();
        if !self.is_end() {
            self.handed_out = Some(Instant::now());
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

struct HeldBody {
    /// `None` once it was given up.
    inside: Arc<Mutex<Option<Inside>>>,
    unread_limit: Option<Arc<UnreadLimit>>,
    watchdog: Option<AbortOnDropHandle<()>>,
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let shared = Arc::clone(&self.inside);
        let mut inside = shared.lock();
        let Some(inside) = inside.as_mut() else {
            return Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client did not take its answer",
            ))));
        };
        let polled = inside.poll(cx);
        // Most responses are one piece, and need no watchdog.
        if inside.handed_out.is_some() && self.watchdog.is_none() {
            self.watchdog = self.unread_limit.as_ref().map(|unread_limit| {
                let task = look_after(Arc::downgrade(&self.inside), Arc::clone(unread_limit));
                AbortOnDropHandle::new(tokio::spawn(task))
            });
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inside.lock().as_ref().is_some_and(Inside::is_end)
    }

    fn size_hint(&self) -> SizeHint {
        let inside = self.inside.lock();
        let Some(inside) = inside.as_ref() else { return SizeHint::new() };
        let mut hint = inside.body.size_hint();
        let rest = inside.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

/// Gives a response up when its client has not asked for the next piece in time.
async fn look_after(inside: Weak<Mutex<Option<Inside>>>, unread_limit: Arc<UnreadLimit>) {
    let mut until = Instant::now() + unread_limit.limit;
    loop {
        tokio::time::sleep_until(until).await;
        let Some(shared) = inside.upgrade() else { return };
        let mut slot = shared.lock();
        let Some(inside) = slot.as_ref() else { return };
        until = inside.handed_out.unwrap_or_else(Instant::now) + unread_limit.limit;
        if until > Instant::now() {
            continue;
        }
        let given_up = slot.take();
        drop(slot);
        drop(given_up);
        tracing::debug!("an answer is given up: its client does not take it");
        unread_limit.gave_up();
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large() -> ApiResponse {
        super::super::body::response(200, "text/plain", vec![b'x'; PIECE_BYTES * 3])
    }

    async fn piece(response: &mut ApiResponse) -> Option<io::Result<usize>> {
        let frame = response.body_mut().frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap().len()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_permit_is_returned_when_the_response_is_not_read() {
        let limit = Duration::from_secs(60);
        let unread_limit = Arc::new(UnreadLimit::new(limit));
        let place = Arc::new(());
        let mut response = hold(large(), Arc::clone(&place), Some(Arc::clone(&unread_limit)));
        for _ in 0..2 {
            tokio::time::sleep(limit * 3 / 4).await;
            assert_eq!(piece(&mut response).await.unwrap().unwrap(), PIECE_BYTES);
            assert_eq!(Arc::strong_count(&place), 2, "a slow client is not a dead one");
        }
        tokio::time::sleep(limit * 2).await;
        assert_eq!(Arc::strong_count(&place), 1);
        assert!(piece(&mut response).await.unwrap().is_err(), "half an answer is not a whole one");
    }

    #[tokio::test]
    async fn a_long_response_yields_to_other_tasks() {
        let body = vec![b'x'; TURN_BYTES * 3];
        let mut response = hold(super::super::body::response(200, "text/plain", body), (), None);
        let mut waits = 0;
        let mut bytes = 0;
        std::future::poll_fn(|cx| match Pin::new(response.body_mut()).poll_frame(cx) {
            Poll::Ready(Some(frame)) => {
                bytes += frame.unwrap().into_data().unwrap().len();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(()),
            Poll::Pending => {
                waits += 1;
                Poll::Pending
            }
        })
        .await;
        assert_eq!((bytes, waits), (TURN_BYTES * 3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_news_is_not_given_up() {
        let unread_limit = Arc::new(UnreadLimit::new(Duration::from_secs(60)));
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let chunks = futures::stream::unfold(
            receiver,
            |mut receiver: tokio::sync::mpsc::UnboundedReceiver<Bytes>| async {
                receiver.recv().await.map(|news| (news, receiver))
            },
        );
        let mut response =
            hold(super::super::body::stream("text/plain", chunks), (), Some(unread_limit));
        for _ in 0..3 {
            let send = async {
                tokio::time::sleep(Duration::from_secs(600)).await;
                sender.send(Bytes::from_static(b"news")).unwrap();
            };
            let (read, ()) = tokio::join!(piece(&mut response), send);
            assert_eq!(read.unwrap().unwrap(), 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_unread_responses_close_the_connection() {
        let unread_limit = Arc::new(UnreadLimit::new(Duration::from_secs(60)));
        let mut left = Vec::new();
        for _ in 0..UNREAD_RESPONSES {
            assert!(!unread_limit.exhausted.is_cancelled());
            let mut response = hold(large(), (), Some(Arc::clone(&unread_limit)));
            piece(&mut response).await.unwrap().unwrap();
            left.push(response);
        }
        unread_limit.exhausted().await;
    }
}
