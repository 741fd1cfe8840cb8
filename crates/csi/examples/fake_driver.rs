//! The fake driver on a socket, for measurements of sidecars: it responds at once.
//!
//! `fake_driver SOCKET NAME NODE-ID VOLUMES` makes that many volumes, prints their ids, one in a line,
//! then `ready`, and serves until it is killed.

use std::collections::BTreeMap;

use longshore_csi::{fake, server};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, name, node, count] = args.as_slice() else {
        return Err("usage: fake_driver SOCKET NAME NODE-ID VOLUMES".into());
    };
    let driver = fake::Driver::with_node(name, node, BTreeMap::new());
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
