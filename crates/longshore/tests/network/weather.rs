//! In every weather claims, volumes and attachments come and go; afterwards everything settles.

use std::time::{Duration, Instant};

use longshore_testing::{Need, need, report};

use super::common::{Home, Instance};
use super::proxy::gate::{Gate, Weather};
use super::proxy::wire::Wire;
use super::stack::Stack;

/// What is wrong, and for how long.
const TIME: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Of requests.
    Requests(Weather),
    /// All connections are reset, several times a second.
    Resets,
    /// All connections die without a word, once.
    Silence,
}

const fn refuse(path: &'static str, code: u16, retry_after: Option<u32>) -> Trouble {
    Trouble::Requests(Weather::Refuse { path, code, retry_after })
}

const TABLE: [Trouble; 9] = [
    Trouble::Requests(Weather::Slow(Duration::from_millis(300))),
    Trouble::Requests(Weather::LoseAnswers),
    Trouble::Requests(Weather::CutLines),
    refuse("/persistentvolumes", 429, Some(1)),
    refuse("/persistentvolumeclaims", 503, None),
    refuse("/volumeattachments", 429, None),
    refuse("/configmaps", 503, Some(1)),
    Trouble::Resets,
    Trouble::Silence,
];

/// An API behind proxies, and everybody else in front of them.
struct Network {
    wire: Wire,
    gate: Gate,
    stack: Stack,
    _api: Instance,
    _home: Home,
}

impl Network {
    async fn start(test: &str) -> Self {
        let home = Home::new(test);
        let api = Instance::start(&home, "api", &["apiserver"]);
        let gate = Gate::start(&api.kubeconfig).await;
        let wire = Wire::start(vec![gate.address]).await;
        let spoiled = gate.kubeconfig(&home.path().join("spoiled"), wire.address);
        let stack = Stack::start(&spoiled, &api.kubeconfig).await;
        Self { wire, gate, stack, _api: api, _home: home }
    }
}

async fn meet(network: &mut Network, round: &str, trouble: Trouble, time: Duration) {
    let Network { wire, gate, stack, .. } = network;
    let (what, before) = (format!("{trouble:?}"), gate.spoiled());
    let opened = wire.opened();
    let until = Instant::now() + time;
    match trouble {
        Trouble::Requests(weather) => {
            gate.weather(weather);
            stack.users.churn(round, || Instant::now() >= until).await;
            gate.weather(Weather::Calm);
            assert!(gate.spoiled() > before, "{what}: nobody noticed");
        }
        Trouble::Resets => {
            let resets = async {
                while Instant::now() < until {
                    wire.reset();
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            };
            tokio::join!(resets, stack.users.churn(round, || Instant::now() >= until));
            assert!(wire.opened() > opened, "{what}: nobody came back");
        }
        Trouble::Silence => {
            wire.swallow();
            stack.users.churn(round, || Instant::now() >= until).await;
        }
    }
    let calm = Instant::now();
    stack.settle(&what, calm).await;
    report(&format!("network: {what}: settled after {:.1} s", calm.elapsed().as_secs_f32()));
    stack.nobody_lost_a_lease(&what).await;
    stack.clear(&what).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_weather_ends_with_all_claims_bound_or_gone_and_no_lease_lost() {
    if !need("network", &[Need::Root]) {
        return;
    }
    let mut network = Network::start("network").await;
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let (rounds, time) = if long { (3, 5 * TIME) } else { (1, TIME) };
    for round in 0..rounds {
        for (number, trouble) in TABLE.into_iter().enumerate() {
            meet(&mut network, &format!("r{round}-{number}"), trouble, time).await;
        }
    }
    network.stack.stop().await;
}

/// A kind whose requests are refused, say because its watch cache starts, concerns nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn claims_are_served_while_another_kind_is_refused() {
    if !need("network", &[Need::Root]) {
        return;
    }
    let network = Network::start("one-path").await;
    let Network { gate, stack, .. } = &network;
    gate.weather(Weather::Refuse { path: "/events", code: 429, retry_after: Some(30) });
    for name in ["one", "two"] {
        stack.users.create(name).await;
        let began = Instant::now();
        while !stack.users.is_bound(name).await {
            assert!(began.elapsed() < Duration::from_secs(20), "{name} waits for events");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        while gate.spoiled() == 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "no event was refused");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    gate.weather(Weather::Calm);
    stack.clear("one path").await;
    network.stack.stop().await;
}
