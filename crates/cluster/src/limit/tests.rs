use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{ConfigMap, Event};
use serde_json::json;

use super::*;
use crate::api::Api;
use crate::testing::{self, answer, failure};

/// Answers after 50 ms; counts requests, and how many were under way at once.
#[derive(Clone, Default)]
struct Server {
    state: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    requests: usize,
    refused: usize,
    under_way: usize,
    most_under_way: usize,
    refuse_until: Option<Instant>,
}

impl Server {
    fn api(&self, limit: Limit) -> Api {
        let server = self.clone();
        let client = testing::client(move |_| {
            let server = server.clone();
            async move { server.answer().await }
        });
        Api::new(limited(client, limit, None))
    }

    async fn answer(&self) -> Response<testing::AnyBody> {
        let refuse = {
            let mut counts = self.state.lock();
            counts.requests += 1;
            counts.under_way += 1;
            counts.most_under_way = counts.most_under_way.max(counts.under_way);
            counts.refuse_until.is_some_and(|until| Instant::now() < until)
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut counts = self.state.lock();
        counts.under_way -= 1;
        if !refuse {
            return answer(200, &json!({"metadata": {"name": "a"}}));
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
    assert_eq!(server.state.lock().most_under_way, adaptive::MAX);
}

/// The server refuses everything for 5 s: every request succeeds in the end, and the server is
/// asked far less often meanwhile.
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

#[tokio::test(start_paused = true)]
async fn a_server_that_never_relents_is_reported() {
    let server = Server::default();
    server.state.lock().refuse_until = Some(Instant::now() + Duration::from_secs(3600));
    let api = server.api(Limit::None);
    let got = api.get::<ConfigMap>(&ObjectKey::new("ns", "a")).await;
    assert!(matches!(got, Err(crate::ApiError::TooManyRequests { .. })), "{got:?}");
    assert_eq!(server.requests(), 1 + RETRIES as usize);
}

/// What can wait is sent after the work if that ends soon, else after a second of patience. Alone it
/// does not wait.
#[tokio::test(start_paused = true)]
async fn what_can_wait_lets_the_work_pass_but_not_for_ever() {
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
        let news = async {
            tokio::task::yield_now().await;
            let start = Instant::now();
            api.later().create::<Event>(&event).await.expect("written");
            start.elapsed().as_millis()
        };
        let (_, took) = tokio::join!(work, news);
        assert!(
            (soonest..=latest).contains(&took),
            "{limit:?}, {rounds} rounds of work: {took} ms"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_rate_is_honoured() {
    let server = Server::default();
    let api = server.api(Limit::Fixed { qps: 5.0, burst: 10 });
    let start = Instant::now();
    futures::future::join_all((0..60).map(|_| get(&api))).await;
    assert_eq!(start.elapsed().as_secs(), 10, "10 at once, 50 more at 5 a second");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_gives_its_place_back() {
    let server = Server::default();
    let api = server.api(Limit::Adaptive);
    for _ in 0..100 {
        let _ = tokio::time::timeout(Duration::from_millis(20), get(&api)).await;
    }
    let all = futures::future::join_all((0..50).map(|_| get(&api)));
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("places are free");
}
