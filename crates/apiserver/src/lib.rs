//! The embedded Kubernetes API: store, watch, registry, http.
