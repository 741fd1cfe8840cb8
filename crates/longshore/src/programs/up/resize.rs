//! The resizers of an embedded instance.
//!
//! One serves a driver as a whole. Where every node has a local driver of its own, the expansions are
//! one program's, which calls no driver, and each node's program modifies the volumes whose images it has.

use anyhow::Result;
use longshore_controllers::resize::{Abilities, Config, Expander, Node, Resizer};
use longshore_csi::{Client, Options, server::Routes};
use tokio_util::sync::CancellationToken;

use crate::programs::{controllers::Shared, provisioner::place_of};

/// What of a driver's work one resizer does.
#[derive(Clone)]
pub(super) enum Part {
    /// All of it.
    Whole(Client),
    /// Its expansions, which are its nodes' work; of the driver of this name.
    Expansions(String),
    /// Changes of the class of volumes that only this node reaches.
    Modifications { csi: Client, node: String },
}

/// Runs until `stop`. It ends early when the driver does not answer; the caller starts it again.
pub(super) async fn run(shared: &Shared, part: Part, stop: CancellationToken) {
    match resizer(shared, part).await {
        Ok(resizer) => resizer.run(stop).await,
        Err(error) => tracing::warn!("no resizer runs yet: {error:#}"),
    }
}

async fn resizer(shared: &Shared, part: Part) -> Result<Resizer> {
    let mut config = Config { pods_wake: true, ..Config::default() };
    let (csi, abilities) = match part {
        Part::Whole(csi) => {
            let abilities = Abilities::ask(&csi, config.timeout).await?;
            (csi, abilities)
        }
        Part::Expansions(driver) => {
            let csi = Client::in_process(Routes::default(), Options::default());
            (csi, Abilities::of_nodes(&driver))
        }
        Part::Modifications { csi, node } => {
            let abilities = Abilities::ask(&csi, config.timeout).await?;
            config.node = Some(Node { name: node.into(), segments: place_of(&csi).await? });
            (csi, Abilities { expander: Expander::Nobody, ..abilities })
        }
    };
    Ok(Resizer::new(&shared.context, csi, config, abilities))
}
