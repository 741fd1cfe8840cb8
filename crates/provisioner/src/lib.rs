//! Write a dynamic provisioner for Kubernetes by implementing two methods.
