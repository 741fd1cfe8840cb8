//! Group snapshots are optional kinds: work on them begins when they are defined, and ends when they are not
//! any more, without a restart and without a delay for anything else.

use std::time::Duration;

use longshore_cluster::Api;
use longshore_core::model::{
    Kind,
    kinds::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent},
};
use tokio_util::sync::CancellationToken;

/// The kinds that the work needs, in the one version that it speaks.
const KINDS: [&str; 3] =
    [VolumeGroupSnapshot::KIND, VolumeGroupSnapshotClass::KIND, VolumeGroupSnapshotContent::KIND];

/// Pause between questions.
const PERIOD: Duration = Duration::from_secs(30);

/// Pause after a question that was not answered.
const SOON: Duration = Duration::from_secs(2);

/// Runs `work` whenever the kinds are defined, until `shutdown`. `absent` is told that they are not.
pub(crate) async fn while_defined<Fut>(
    api: &Api,
    shutdown: &CancellationToken,
    absent: impl Fn(),
    work: impl Fn(CancellationToken) -> Fut,
) where
    Fut: Future<Output = ()>,
{
    loop {
        if until(api, true, shutdown, &absent).await.is_none() {
            return;
        }
        let stop = shutdown.child_token();
        let gone = async {
            let ended = until(api, false, shutdown, &|| ()).await;
            if ended.is_some() {
                tracing::warn!("group snapshots are not defined any more; their work ends");
            }
            stop.cancel();
        };
        tokio::join!(work(stop.clone()), gone);
    }
}

/// Waits until the kinds are defined, or are not; `None` at shutdown.
async fn until(
    api: &Api,
    defined: bool,
    shutdown: &CancellationToken,
    absent: &impl Fn(),
) -> Option<()> {
    let mut told = false;
    let wait = async {
        loop {
            let pause = match are_defined(api).await {
                Ok(now) if now == defined => return,
                Ok(false) => {
                    if !told {
                        tracing::info!("group snapshots are not defined; single ones are served");
                    }
                    told = true;
                    absent();
                    PERIOD
                }
                Ok(true) => PERIOD,
                Err(error) => {
                    tracing::warn!(%error, "cannot ask for the kinds of group snapshots");
                    SOON
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    shutdown.run_until_cancelled(wait).await
}

async fn are_defined(api: &Api) -> Result<bool, kube::Error> {
    let group = VolumeGroupSnapshot::api_version();
    match api.client().list_api_group_resources(&group).await {
        Ok(list) => {
            let there = |kind: &&str| list.resources.iter().any(|one| one.kind == **kind);
            Ok(KINDS.iter().all(there))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
