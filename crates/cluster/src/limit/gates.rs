//! Closes the way to one resource when the server asks to wait there.
//!
//! A server that refuses one resource may serve all others: the watch cache of a custom resource that starts anew
//! responds with 429 for a while, and claims have nothing to do with it. A server that is overloaded refuses them
//! all, each closes for itself, and the limit on requests in flight, which they share, bounds what is sent.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What a request is about: the API group and the resource in its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Resource {
    group: Box<str>,
    name: Box<str>,
}

impl Resource {
    /// The resource of a request's path. What is no resource, as discovery, counts as one of its own.
    pub(super) fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts[..] {
            ["api", _, ref rest @ ..] => ("", rest),
            ["apis", group, _, ref rest @ ..] => (group, rest),
            _ => ("", &[][..]),
        };
        let name = match rest {
            ["namespaces", _, "status" | "finalize"] => "namespaces",
            ["namespaces", _, name, ..] | [name, ..] => name,
            [] => "",
        };
        Self { group: group.into(), name: name.into() }
    }
}

/// The resources to which nothing is sent for the time being.
#[derive(Debug, Default)]
pub(super) struct Gates {
    closed: Mutex<HashMap<Resource, Instant>>,
}

impl Gates {
    /// Sends nothing about a resource until then, or longer if that was asked before.
    pub(super) fn close(&self, resource: &Resource, until: Instant) {
        let mut closed = self.closed.lock();
        let now = Instant::now();
        closed.retain(|_, until| *until > now);
        let at = closed.entry(resource.clone()).or_insert(until);
        *at = until.max(*at);
    }

    pub(super) fn is_closed(&self, resource: &Resource) -> bool {
        self.closed_until(resource).is_some()
    }

    /// Waits until requests about a resource may be sent.
    pub(super) async fn opened(&self, resource: &Resource) {
        while let Some(until) = self.closed_until(resource) {
            tokio::time::sleep_until(until).await;
        }
    }

    fn closed_until(&self, resource: &Resource) -> Option<Instant> {
        let until = self.closed.lock().get(resource).copied();
        until.filter(|until| *until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn resource_is_read_from_the_path() {
        for (path, group, name) in [
            ("/api/v1/namespaces/ns/configmaps/a", "", "configmaps"),
            ("/api/v1/persistentvolumes", "", "persistentvolumes"),
            ("/api/v1/persistentvolumes/pv/status", "", "persistentvolumes"),
            ("/api/v1/namespaces", "", "namespaces"),
            ("/api/v1/namespaces/ns", "", "namespaces"),
            ("/api/v1/namespaces/ns/finalize", "", "namespaces"),
            (
                "/apis/storage.k8s.io/v1/volumeattachments/va/status",
                "storage.k8s.io",
                "volumeattachments",
            ),
            (
                "/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots",
                "snapshot.storage.k8s.io",
                "volumesnapshots",
            ),
            ("/apis/storage.k8s.io/v1", "storage.k8s.io", ""),
            ("/version", "", ""),
            ("/", "", ""),
        ] {
            let resource = Resource { group: group.into(), name: name.into() };
            assert_eq!(Resource::of(path), resource, "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gates_that_are_open_again_take_no_room() {
        let gates = Gates::default();
        let start = Instant::now();
        for number in 0..100 {
            let resource = Resource { group: "g".into(), name: format!("r{number}").into() };
            gates.close(&resource, Instant::now() + Duration::from_secs(1));
            gates.close(&resource, Instant::now());
            assert!(gates.is_closed(&resource), "the longer wait counts");
            gates.opened(&resource).await;
        }
        assert_eq!(start.elapsed().as_secs(), 100);
        assert_eq!(gates.closed.lock().len(), 1);
    }
}
