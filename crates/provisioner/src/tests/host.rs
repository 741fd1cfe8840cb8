//! A process with several provisioners: leases, metrics, settings.

use longshore_core::model::kinds::Lease;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::{Election, Host, HostError};

struct Named(&'static str);

impl Provisioner for Named {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        Ok(ProvisionedVolume::new(
            request,
            json!({"hostPath": {"path": format!("/srv/{}", self.0)}}),
        ))
    }

    async fn delete(&self, _volume: &Volume) -> Result<(), DeleteError> {
        Ok(())
    }
}

impl Lab {
    async fn holder(&self, lease: &str) -> Option<String> {
        let key = ObjectKey::new("leases", lease);
        let found = self.api.get_raw::<Lease>(&key).await.unwrap()?;
        found["spec"]["holderIdentity"].as_str().filter(|who| !who.is_empty()).map(str::to_owned)
    }

    /// Waits, in the world's time, until there is a volume for a claim.
    async fn made(&self, uid: &str) -> Volume {
        for _ in 0..600 {
            if let Some(volume) = self.volumes().await.remove(&format!("pvc-{uid}")) {
                return volume;
            }
            self.settle().await;
        }
        panic!("no volume for claim {uid}");
    }
}

fn in_leases() -> Election {
    Election { namespace: Some("leases".into()), ..Election::default() }
}

#[tokio::test(start_paused = true)]
async fn several_provisioners_in_one_process_lead_under_upstreams_names() {
    let lab = Lab::new().await;
    lab.namespace("leases").await;
    lab.class("class-2", "example.com/second", json!({})).await;
    let host = || {
        Host::over(lab.api.clone())
            .elected(in_leases())
            .with(Config::new(NAME), Named("first"))
            .with(Config::new("example.com/second"), Named("second"))
    };
    let (one, two) = (CancellationToken::new(), CancellationToken::new());
    let first = tokio::spawn(host().run(one.clone()));
    let uid = lab.plain_claim().await;
    let note = json!({"volume.kubernetes.io/storage-provisioner": "example.com/second"});
    let other = lab.claim("claim-2", "class-2", note, json!({})).await;
    assert_eq!(lab.made(&uid).await.spec.host_path.unwrap().path, "/srv/first");
    assert_eq!(lab.made(&other).await.spec.host_path.unwrap().path, "/srv/second");
    let holder = lab.holder("foo.bar-baz").await.unwrap();
    assert!(lab.holder("example.com-second").await.is_some());
    // The source of an event is the provisioner, the host and a random part.
    let events = lab.api.list::<Event>(None, &ListParams::default()).await.unwrap();
    let told = events.iter().find(|event| event.reason == "ProvisioningSucceeded").unwrap();
    let source = lab.api.get_raw::<Event>(&told.metadata.key()).await.unwrap().unwrap();
    let component = source["source"]["component"].as_str().unwrap();
    let names = [format!("{NAME}_"), "example.com/second_".to_owned()];
    assert!(names.iter().any(|name| component.starts_with(name)), "{component}");

    // Another process waits, and takes over when the first lets go.
    let second = tokio::spawn(host().run(two.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(lab.holder("foo.bar-baz").await, Some(holder.clone()));
    one.cancel();
    first.await.unwrap().unwrap();
    let uid = lab.claim("claim-3", "class-1", json!({}), json!({})).await;
    lab.made(&uid).await;
    assert_ne!(lab.holder("foo.bar-baz").await, Some(holder));
    two.cancel();
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_the_process() {
    let lab = Lab::new().await;
    lab.namespace("leases").await;
    let host = Host::over(lab.api.clone()).elected(in_leases());
    let run = tokio::spawn(host.with(Config::new(NAME), Named("x")).run(lab.stop.clone()));
    while lab.holder("foo.bar-baz").await.is_none() {
        lab.settle().await;
    }
    let key = ObjectKey::new("leases", "foo.bar-baz");
    let patch = json!({"spec": {"holderIdentity": "somebody-else"}});
    lab.api.patch::<Lease>(&key, Patch::Merge(&patch)).await.unwrap();
    let ended = run.await.unwrap();
    assert!(
        matches!(&ended, Err(HostError::Election(error)) if error.to_string().contains("lost"))
    );
}

#[tokio::test(start_paused = true)]
async fn settings_are_checked_before_anything_runs() {
    let lab = Lab::new().await;
    let host = || Host::over(lab.api.clone()).elected(None);
    let bad = Config { threads: 0, ..Config::new(NAME) };
    let ended = host().with(bad, Named("x")).run(lab.stop.clone()).await;
    assert!(matches!(ended, Err(HostError::Config(error)) if error.field == "threads"));
    let twice = host().with(Config::new(NAME), Named("x")).with(Config::new(NAME), Named("y"));
    let ended = twice.run(lab.stop.clone()).await.unwrap_err();
    assert!(ended.to_string().contains(NAME), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn metrics_are_served_as_soon_as_the_address_is_free() {
    let lab = Lab::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let host = Host::over(lab.api.clone()).elected(None).serving_metrics(&address, "/numbers");
    let run = tokio::spawn(host.with(Config::new(NAME), Named("x")).run(lab.stop.clone()));
    let uid = lab.plain_claim().await;
    lab.made(&uid).await;
    drop(taken);
    let mut stream = loop {
        match tokio::net::TcpStream::connect(&address).await {
            Ok(stream) => break stream,
            Err(_) => lab.settle().await,
        }
    };
    let request = "GET /numbers HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = "controller_persistentvolumeclaim_provision_total{class=\"class-1\",source=\"\"} 1";
    assert!(answer.contains(line), "{answer}");
    lab.stop.cancel();
    run.await.unwrap().unwrap();
}
