//! The text of the event about a request that no program serves.

use super::{Request, Server};

/// What is known of the instance that writes the event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Surroundings<'a> {
    /// Socket of the request's driver, if that driver runs here.
    pub socket: Option<&'a str>,
    /// How another program reaches the API.
    pub kubeconfig: Option<&'a str>,
    /// Names of the drivers that run here, with commas between them.
    pub drivers: &'a str,
    /// Names of the nodes, with commas between them.
    pub nodes: &'a str,
    /// The driver was asked, and cannot do it.
    pub unable: bool,
}

/// Says what waits, for which program, and what to do.
#[must_use]
pub fn notice(request: &Request, around: &Surroundings<'_>) -> String {
    let Request { what, by } = request;
    let program = by.program();
    let access = around.kubeconfig.map(|file| format!(" --kubeconfig={file}")).unwrap_or_default();
    match (by, by.driver(), around.socket) {
        (Server::None(kind), ..) => format!(
            "{what} is not carried out: no program does that for volumes of kind {kind}. Make another \
             volume and copy the data"
        ),
        (Server::Scheduler(_), ..) => format!(
            "{what} waits: no scheduler {program:?} runs. Leave spec.schedulerName out, or start that \
             scheduler{}",
            access.replacen(' ', " with ", 1)
        ),
        (Server::Populator(kind), ..) => format!(
            "{what} waits: its data source is of kind {kind}, which no driver fills a volume from, and no \
             populator has taken it on. Start the populator of that kind{}, or name a VolumeSnapshot or a \
             PersistentVolumeClaim as the source",
            access.replacen(' ', " with ", 1)
        ),
        (Server::Node(node), ..) => format!(
            "{what} waits: there is no node {node:?}{}. Delete the pod with --force, and leave \
             spec.nodeName out or name a node that is there",
            named(around.nodes)
        ),
        (_, None, _) => format!(
            "{what} waits: no {program} runs. Start the official one beside this instance: {program}{access}"
        ),
        (Server::Snapshotter(driver), ..) if around.unable => format!(
            "{what} is not carried out: driver {driver} takes no snapshots. Copy the data to another volume \
             while no pod writes to it"
        ),
        (_, Some(driver), _) if around.unable => format!(
            "{what} is not carried out: driver {driver} does not offer it. Ask for what the claim has, or \
             copy the data to a volume of another driver"
        ),
        (_, Some(driver), Some(socket)) => format!(
            "{what} waits: no {program} runs for driver {driver}. Start the official one beside this \
             instance: {program}{access} --csi-address={socket}"
        ),
        (_, Some(driver), None) => format!(
            "{what} waits: no {program} runs for {driver}, and no driver of that name is here{}. Start \
             both, the driver with --csi-endpoint",
            named(around.drivers)
        ),
    }
}

fn named(names: &str) -> String {
    match names {
        "" => String::new(),
        names => format!(" (there are: {names})"),
    }
}
