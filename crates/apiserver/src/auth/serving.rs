//! The certificate that the server shows, and the names and addresses in it.
//!
//! It is signed by the CA at each start and never stored. It is made anew when the machine has got another address: a
//! connection that arrives at an address which the certificate does not name is the sign.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::pki::{Pair, PkiError, make_serving};

/// Where a server is reached, beside the loopback addresses and the names every server has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerNames {
    pub addresses: BTreeSet<IpAddr>,
    /// DNS names; the first label may be `*`.
    pub names: BTreeSet<String>,
}

impl ServerNames {
    fn covers(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// All addresses of the certificate.
    pub(super) fn all_addresses(&self) -> BTreeSet<IpAddr> {
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        self.addresses.iter().map(IpAddr::to_canonical).chain(loopback).collect()
    }
}

/// Asked at the start, and again when a connection arrives at an unknown address.
pub(crate) type AskNames = Box<dyn Fn() -> ServerNames + Send + Sync>;

/// The serving certificate of a listener.
pub(crate) struct Serving {
    ca: Pair,
    ask: AskNames,
    provider: Arc<CryptoProvider>,
    current: ArcSwap<(ServerNames, Arc<CertifiedKey>)>,
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("names", &self.current.load().0).finish_non_exhaustive()
    }
}

impl Serving {
    pub(super) fn new(
        ca: Pair,
        ask: AskNames,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, PkiError> {
        let names = ask();
        let key = Arc::new(certified(&ca, &names, &provider)?);
        Ok(Self { ca, ask, provider, current: ArcSwap::from_pointee((names, key)) })
    }

    /// Makes the certificate anew if the machine has got the address at which a client arrived.
    pub(crate) fn arrived_at(&self, address: IpAddr) {
        let old = self.current.load();
        if old.0.covers(address) {
            return;
        }
        let names = (self.ask)();
        if names == old.0 {
            return;
        }
        match certified(&self.ca, &names, &self.provider) {
            Ok(key) => {
                tracing::info!(%address, "this machine has other addresses now; the serving certificate is made anew");
                self.current.store(Arc::new((names, Arc::new(key))));
            }
            Err(error) => tracing::warn!(%error, "the serving certificate stays as it is"),
        }
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().1))
    }
}

fn certified(
    ca: &Pair,
    names: &ServerNames,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, PkiError> {
    let (certificate, key) = make_serving(ca, names)?;
    let made = CertifiedKey::from_der(vec![certificate], key, provider);
    made.map_err(|error| PkiError::Make { what: "the serving certificate", why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use x509_parser::extensions::GeneralName;

    use super::*;
    use crate::auth::Pki;

    fn names(addresses: &[&str]) -> ServerNames {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        ServerNames { addresses, names: BTreeSet::from(["box.lan".to_owned()]) }
    }

    fn shown(serving: &Serving) -> (Vec<String>, Vec<u8>) {
        let key = Arc::clone(&serving.current.load().1);
        let der = key.cert[0].to_vec();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        let san = parsed.subject_alternative_name().unwrap().unwrap();
        let name = |name: &GeneralName<'_>| match name {
            GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
                Ok(four) => IpAddr::from(four).to_string(),
                Err(_) => IpAddr::from(<[u8; 16]>::try_from(*bytes).unwrap()).to_string(),
            },
            other => other.to_string(),
        };
        let mut all: Vec<String> = san.value.general_names.iter().map(name).collect();
        all.sort();
        (all, der.clone())
    }

    #[test]
    fn the_certificate_follows_the_addresses_of_the_machine() {
        let now = Arc::new(Mutex::new(names(&["10.0.0.1"])));
        let asked = Arc::clone(&now);
        let pki = Pki::open(None).unwrap();
        let serving = pki.serving(Box::new(move || asked.lock().clone())).unwrap();
        let (first, der) = shown(&serving);
        for part in ["10.0.0.1", "127.0.0.1", "box.lan", "kubernetes.default.svc"] {
            assert!(first.iter().any(|name| name.contains(part)), "{part}: {first:?}");
        }
        // What it names, and what the machine does not have, changes nothing.
        for address in ["10.0.0.1", "::ffff:10.0.0.1", "127.0.0.5", "10.0.0.9"] {
            serving.arrived_at(address.parse().unwrap());
            assert_eq!(shown(&serving).1, der, "{address}");
        }
        *now.lock() = names(&["10.0.0.1", "10.0.0.9"]);
        serving.arrived_at("::ffff:10.0.0.9".parse().unwrap());
        let (second, _) = shown(&serving);
        assert!(second.iter().any(|name| name.contains("10.0.0.9")), "{second:?}");
    }
}
