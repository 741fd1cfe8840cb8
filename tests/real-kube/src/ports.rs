//! Free ports, and starting again when one was taken in between.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// How often a program is started again because another one took its port.
pub(crate) const TRIES: usize = 5;

/// Ports that were free a moment ago, all different.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    // All are held until all are known, so none is given twice.
    let held: io::Result<Vec<TcpListener>> =
        (0..N).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
    let held = held.context("cannot find a free port on loopback")?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr().context("cannot read a port")?.port();
    }
    Ok(ports)
}

/// Whether a program ended because its port was taken.
pub(crate) fn taken(log: &str) -> bool {
    log.contains("address already in use")
}
