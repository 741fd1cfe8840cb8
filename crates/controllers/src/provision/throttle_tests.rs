//! A server that answers 429 for a while: no claim is lost, and it is asked less.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Response, StatusCode};
use kube::client::Body;
use longshore_cluster::{
    Api,
    limit::{Limit, limited},
};
use tokio::time::Instant;

use super::testing::Bench;

#[derive(Default)]
struct Throttle {
    refuse_until: Option<Instant>,
    refused: usize,
    answered: usize,
}

/// A client whose server refuses everything until the given moment.
fn throttled(client: kube::Client, throttle: &Arc<Mutex<Throttle>>) -> kube::Client {
    let throttle = throttle.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, throttle) = (client.clone(), throttle.clone());
        async move {
            let refuse = {
                let mut state = throttle.lock().unwrap();
                let refuse = state.refuse_until.is_some_and(|until| Instant::now() < until);
                state.refused += usize::from(refuse);
                state.answered += usize::from(!refuse);
                refuse
            };
            if !refuse {
                return client.send(request).await;
            }
            let text = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}"#;
            let answer = Response::builder()
                .status(StatusCode::TOO_MANY_REQUESTS)
                .header("retry-after", "1")
                .body(Body::from(text.as_bytes().to_vec()));
            Ok(answer.expect("a response"))
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn five_seconds_of_429_lose_no_claim() {
    const CLAIMS: usize = 40;
    let mut bench = Bench::new().await;
    let throttle = Arc::new(Mutex::new(Throttle::default()));
    let client = throttled(bench.api.client().clone(), &throttle);
    let patient = bench.api.clone();
    bench.api = Api::new(limited(client, Limit::Adaptive, None));
    bench.start();
    bench.api = patient;
    bench.claim("first", "fast").await;
    bench.until_bound("first").await;

    // Everything that the loops say in these five seconds is refused.
    throttle.lock().unwrap().refuse_until = Some(Instant::now() + Duration::from_secs(5));
    for number in 0..CLAIMS {
        bench.claim(&format!("claim-{number}"), "fast").await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let refused = throttle.lock().unwrap().refused;
    let before = throttle.lock().unwrap().answered;
    for number in 0..CLAIMS {
        bench.until_bound(&format!("claim-{number}")).await;
    }
    let asked = throttle.lock().unwrap().answered - before;
    assert!(refused > 0, "the server refused nothing");
    assert!(
        refused * 4 < asked,
        "{refused} requests into the refusals, {asked} needed for the work"
    );
    assert_eq!(bench.driver.volumes().len(), CLAIMS + 1, "one volume a claim");
}
