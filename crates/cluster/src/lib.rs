//! The API's wire: client configuration, caches, work queue, leases, events, metrics, logs.
