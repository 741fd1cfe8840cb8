//! Writes that the API server refuses: nothing is forgotten, and nothing is remembered that nobody can see.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use longshore_cluster::Api;
use longshore_core::model::kinds::Claim;
use longshore_csi::fake::{Action, Fault, Phase};
use parking_lot::Mutex;
use serde_json::json;
use tonic::Code;

use super::{
    Abilities, Config, Resizer,
    expand::Expansions,
    modify::Modifications,
    tests::{MODIFIED, RESIZED, World, kinds, modify_stage, refusing, size},
};

/// What the next patches of a claim's status get for an answer: `None` lets one through.
type Answers = Arc<Mutex<Vec<Option<u16>>>>;

/// A way to the API that answers patches of a claim's status from the list, first to last, and then lets
/// all through.
fn answering(answers: &Answers) -> impl FnOnce(&Api) -> Api {
    let answers = answers.clone();
    move |api| {
        refusing(api, move |request| {
            let path = request.uri().path();
            let meant = request.method() == Method::PATCH
                && path.contains("/persistentvolumeclaims/")
                && path.ends_with("/status");
            let mut answers = answers.lock();
            let code = (meant && !answers.is_empty()).then(|| answers.remove(0)).flatten()?;
            Some(match code {
                409 => (409, "Conflict", "the object has been modified"),
                code => (code, "InternalError", "etcd is away"),
            })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_of_a_class_that_could_not_be_written_does_not_rest() {
    // The claim says that the change is under way; that it is infeasible it does not say.
    let answers: Answers = Arc::new(Mutex::new(vec![None, Some(500)]));
    let world = World::start(Config::default()).await;
    let world = world.through(Config::default(), answering(&answers)).await;
    let claim = world.claim("data").await;
    world.driver.always(MODIFIED, Fault::Before(Code::InvalidArgument, "no such tier".into()));
    world.want(&claim, "b").await;
    world.bench.pass(Duration::from_secs(30)).await;
    let seen = world.bench.get::<Claim>(&claim).await.expect("there");
    assert_eq!(modify_stage(&seen), ("b", "Infeasible"));
    assert_eq!(world.classes(), ["b", "b"], "asked again, and then it rests");
    assert!(answers.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn mark_that_could_not_be_written_does_not_undo_a_final_answer() {
    let answers = Answers::default();
    let seldom = Duration::from_secs(100);
    let config = Config { retry_interval_start: seldom, ..Config::default() };
    let world = World::start(config.clone()).await.through(config, answering(&answers)).await;
    let claim = world.claim("data").await;
    world.driver.always(RESIZED, Fault::Before(Code::Internal, "no".into()));
    world.ask(&claim, "5Gi").await;
    world.until(&claim, |claim| kinds(claim).contains(&"ControllerResizeError")).await;
    world.bench.pass(Duration::from_secs(1)).await;
    world.driver.clear_faults();
    world.driver.clear_calls();
    // The mark of the smaller size; the driver hears of neither before it is written.
    *answers.lock() = vec![Some(500)];
    world.ask(&claim, "2Gi").await;
    world.bench.pass(Duration::from_secs(1)).await;
    assert_eq!((world.sizes(), answers.lock().len()), (vec![], 0));
    let told = world.bench.events("VolumeResizeFailed").await;
    assert!(told.iter().any(|text| text.contains("etcd is away")), "{told:?}");
    world.bench.pass(Duration::from_secs(300)).await;
    world.until(&claim, |claim| size(claim) == "2Gi").await;
    assert_eq!(world.sizes(), [2], "5Gi was refused for good");
}

#[tokio::test(start_paused = true)]
async fn conflict_that_does_not_end_is_tried_less_and_less_often() {
    for modifies in [false, true] {
        let answers: Answers = Arc::new(Mutex::new(vec![Some(409); 100_000]));
        let world = World::start(Config::default()).await;
        let world = world.through(Config::default(), answering(&answers)).await;
        let claim = world.claim("data").await;
        match modifies {
            true => world.want(&claim, "b").await,
            false => world.ask(&claim, "2Gi").await,
        }
        world.bench.pass(Duration::from_secs(60)).await;
        let refused = 100_000 - answers.lock().len();
        // Ten at once, then after 1, 2, 4, 8, 16 and 32 seconds.
        assert!((10..=100).contains(&refused), "{refused} writes in a minute");
        answers.lock().clear();
        world.bench.pass(Duration::from_secs(60)).await;
        match modifies {
            true => drop(world.until_class(&claim, "b").await),
            false => drop(world.until(&claim, |claim| size(claim) == "2Gi").await),
        }
        assert!(world.bench.events("VolumeResizeFailed").await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn claim_that_is_deleted_during_a_call_leaves_nothing_in_memory() {
    for code in [Code::Internal, Code::InvalidArgument, Code::Unavailable, Code::FailedPrecondition]
    {
        let world = World::start(Config::default()).await;
        let World { bench, driver, process } = world;
        process.kill();
        let mut process = bench.process();
        let abilities = Abilities::ask(&driver.client(), Duration::from_secs(1)).await;
        let (context, abilities) = (&process.context, abilities.expect("able"));
        let resizer = Resizer::new(context, driver.client(), Config::default(), abilities);
        let sidecar = Arc::new(resizer.into_sidecar());
        let (expansions, changes) = (Expansions::new(&sidecar), Modifications::new(&sidecar));
        let shutdown = process.shutdown.clone();
        process.spawn(async move {
            tokio::join!(expansions.run(&shutdown), changes.run(&shutdown));
        });
        let world = World { bench, driver, process };
        let claim = world.claim("data").await;
        for call in [RESIZED, MODIFIED] {
            world.driver.always(call, Fault::Before(code, "no".into()));
        }
        world.driver.hook(|event| match (event.call, event.phase) {
            (RESIZED | MODIFIED, Phase::Before) => Action::Delay(Duration::from_secs(5)),
            _ => Action::Continue,
        });
        let both = json!({"spec": {"volumeAttributesClassName": "b",
            "resources": {"requests": {"storage": "2Gi"}}}});
        world.bench.merge::<Claim>(&claim, both).await;
        world.bench.pass(Duration::from_secs(1)).await;
        let free = json!({"metadata": {"finalizers": null}});
        world.bench.merge::<Claim>(&claim, free).await;
        world.bench.delete::<Claim>(&claim).await;
        world.bench.until_gone::<Claim>(&claim).await;
        world.bench.pass(Duration::from_secs(600)).await;
        assert_eq!((world.sizes().len(), world.classes().len()), (1, 1), "{code:?}");
        assert_eq!(sidecar.memory.len(), 0, "{code:?}");
    }
}
