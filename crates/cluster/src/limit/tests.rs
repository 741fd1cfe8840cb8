use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{ConfigMap, Event, Secret};
use serde_json::json;

use super::*;
use crate::api::Api;
use crate::testing::{self, failure, respond};

/// Responds after 50 ms; counts requests, and how many were in flight at once.
#[derive(Clone, Default)]
struct Server {
    state: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    requests: usize,
    refused: usize,
    in_flight: usize,
    most_in_flight: usize,
    refuse_until: Option<Instant>,
    /// Only requests with this in their path are refused.
    refuse_only: &'static str,
}

impl Server {
    fn api(&self, limit: Limit) -> Api {
        let server = self.clone();
        let client = testing::client(move |request| {
            let server = server.clone();
            async move { server.respond(&request.path).await }
        });
        Api::new(limited(client, limit, None))
    }

    async fn respond(&self, path: &str) -> Response<testing::AnyBody> {
        let refuse = {
            let mut counts = self.state.lock();
            counts.requests += 1;
            counts.in_flight += 1;
            counts.most_in_flight = counts.most_in_flight.max(counts.in_flight);
            let now = counts.refuse_until.is_some_and(|until| Instant::now() < until);
            now && path.contains(counts.refuse_only)
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut counts = self.state.lock();
        counts.in_flight -= 1;
        if !refuse {
            return respond(200, &json!({"metadata": {"name": "a"}}));
        }
        counts.refused += 1;
        let mut response = failure(429, "TooManyRequests");
        response.headers_mut().insert(header::RETRY_AFTER, "1".parse().expect("a header"));
        response
    }

    fn requests(&self) -> usize {
        self.state.lock().requests
    }
}

async fn get(api: &Api) {
    let got = api.get::<ConfigMap>(&ObjectKey::new("ns", "a")).await;
    assert!(got.expect("nothing is lost").is_some());
}

/// Sends as fast as it may for `seconds`; every request must succeed.
async fn load(api: &Api, seconds: u64) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let workers = (0..100).map(|_| async {
        while Instant::now() < until {
            get(api).await;
        }
    });
    futures::future::join_all(workers).await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_grows_to_32_and_not_beyond() {
    let server = Server::default();
    load(&server.api(Limit::Adaptive), 5).await;
    assert_eq!(server.state.lock().most_in_flight, adaptive::MAX);
}

/// The server refuses everything for 5 s: every request succeeds in the end, and the server is
/// called far less often meanwhile.
#[tokio::test(start_paused = true)]
async fn refusals_for_five_seconds_lose_nothing_and_the_rate_falls() {
    let server = Server::default();
    let api = server.api(Limit::Adaptive);
    load(&api, 5).await;
    let calm = server.requests();
    server.state.lock().refuse_until = Some(Instant::now() + Duration::from_secs(5));
    load(&api, 5).await;
    let refused = server.state.lock().refused;
    assert!(refused > 0);
    assert!(refused * 20 < calm, "{refused} requests in 5 s of refusals, {calm} in 5 calm ones");
    let before = server.requests();
    load(&api, 5).await;
    let after = server.requests() - before;
    assert!(after * 2 > calm, "the rate comes back: {after} after, {calm} before");
}

/// More requests wait for the refused resource than may be in flight.
#[tokio::test(start_paused = true)]
async fn refusals_of_one_resource_do_not_stop_requests_to_others() {
    for limit in [Limit::Adaptive, Limit::Fixed { qps: 1000.0, burst: 1000 }, Limit::None] {
        let server = Server::default();
        let hour = Instant::now() + Duration::from_secs(3600);
        (server.state.lock().refuse_until, server.state.lock().refuse_only) =
            (Some(hour), "/secrets/");
        let api = server.api(limit);
        let key = ObjectKey::new("ns", "a");
        let refused = futures::future::join_all((0..100).map(|_| api.get::<Secret>(&key)));
        let others = async {
            for _ in 0..200 {
                let sent = Instant::now();
                get(&api).await;
                let took = sent.elapsed();
                // 50 ms of its own, and a turn behind those that are refused once more.
                assert!(took < Duration::from_millis(1500), "{limit:?}: {took:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let (refused, ()) = tokio::join!(refused, others);
        assert!(refused.iter().all(Result::is_err));
        let most = server.state.lock().most_in_flight;
        assert!(limit != Limit::Adaptive || most <= adaptive::MAX, "{most}");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_refusals_are_reported_after_the_last_retry() {
    let server = Server::default();
    server.state.lock().refuse_until = Some(Instant::now() + Duration::from_secs(3600));
    let api = server.api(Limit::None);
    let got = api.get::<ConfigMap>(&ObjectKey::new("ns", "a")).await;
    assert!(matches!(got, Err(crate::ApiError::TooManyRequests { .. })), "{got:?}");
    assert_eq!(server.requests(), 1 + RETRIES as usize);
}

/// A low-priority request is sent after the others if they end soon, else after a second. Without
/// others it does not wait.
#[tokio::test(start_paused = true)]
async fn low_priority_requests_wait_at_most_a_second_while_the_api_is_saturated() {
    let event = json!({"metadata": {"namespace": "ns", "name": "e"}});
    let cases = [(0, 50, 50), (4, 200, 1000), (100, 1050, 1100)];
    let limits = [Limit::Adaptive, Limit::None];
    for (limit, (rounds, soonest, latest)) in
        limits.into_iter().flat_map(|limit| cases.map(|case| (limit, case)))
    {
        let api = Server::default().api(limit);
        let work = futures::future::join_all((0..adaptive::MAX).map(|_| async {
            for _ in 0..rounds {
                get(&api).await;
            }
        }));
        let low_priority = async {
            tokio::task::yield_now().await;
            let start = Instant::now();
            api.low_priority().create::<Event>(&event).await.expect("written");
            start.elapsed().as_millis()
        };
        let (_, took) = tokio::join!(work, low_priority);
        assert!(
            (soonest..=latest).contains(&took),
            "{limit:?}, {rounds} rounds of work: {took} ms"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_sent_at_the_configured_rate() {
    let server = Server::default();
    let api = server.api(Limit::Fixed { qps: 5.0, burst: 10 });
    let start = Instant::now();
    futures::future::join_all((0..60).map(|_| get(&api))).await;
    assert_eq!(start.elapsed().as_secs(), 10, "10 at once, 50 more at 5 a second");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_returns_its_permit() {
    let server = Server::default();
    let api = server.api(Limit::Adaptive);
    for _ in 0..100 {
        let _ = tokio::time::timeout(Duration::from_millis(20), get(&api)).await;
    }
    let all = futures::future::join_all((0..50).map(|_| get(&api)));
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("permits are free");
}

/// The server refuses events for half a minute, more of them than requests may be in flight.
#[tokio::test(start_paused = true)]
async fn a_refused_kind_waits_alone() {
    let client = testing::client(|request| async move {
        if !request.path.contains("/events") {
            return respond(200, &json!({"metadata": {"name": "a"}}));
        }
        let mut response = failure(429, "TooManyRequests");
        response.headers_mut().insert(header::RETRY_AFTER, "30".parse().expect("a header"));
        response
    });
    let api = Api::new(limited(client, Limit::Adaptive, None));
    let event = json!({"metadata": {"namespace": "ns", "name": "e"}});
    for _ in 0..100 {
        let (api, event) = (api.clone(), event.clone());
        tokio::spawn(async move { api.create::<Event>(&event).await.map(drop) });
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let start = Instant::now();
    get(&api).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
