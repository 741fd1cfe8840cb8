//! The fake driver on a socket, for measurements of sidecars: it responds at once.
//!
//! `fake_driver SOCKET NAME NODE-ID VOLUMES [ZONES]` makes that many volumes, prints their ids, one in a
//! line, then `ready`, and serves until it is killed. With ZONES it expands volumes and has so many
//! places, `topology.bench/zone=z0` and on.

use std::collections::BTreeMap;

use longshore_csi::{capabilities::ControllerCapability, fake, server};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (socket, name, node, count, zones) = match args.as_slice() {
        [socket, name, node, count] => (socket, name, node, count, 0),
        [socket, name, node, count, zones] => (socket, name, node, count, zones.parse()?),
        _ => return Err("usage: fake_driver SOCKET NAME NODE-ID VOLUMES [ZONES]".into()),
    };
    let zone = |at: usize| BTreeMap::from([("topology.bench/zone".to_owned(), format!("z{at}"))]);
    let here = if zones == 0 { BTreeMap::new() } else { zone(0) };
    let driver = fake::Driver::with_node(name, node, here);
    if zones > 0 {
        driver.configure(|config| {
            config.controller.insert(ControllerCapability::ExpandVolume);
            // It does not have the volumes that are attached already, so it must not list them.
            config.controller.remove(ControllerCapability::ListVolumesPublishedNodes);
        });
        driver.with_pools((0..zones).map(|at| (zone(at), None)));
    }
    let client = driver.client();
    for at in 0..count.parse::<usize>()? {
        let made = client.create_volume(fake::create_request(&format!("v-{at}"), 1 << 20)).await?;
        println!("{}", made.volume.ok_or("an response without a volume")?.volume_id);
    }
    let listener = server::Listener::bind(socket)?;
    println!("ready");
    server::serve(driver.routes(), listener, CancellationToken::new()).await?;
    Ok(())
}
