//! A kubeconfig that needs no other file.

use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::pki::Pki;

/// The administrator's kubeconfig for a server at this `HOST:PORT`.
pub fn kubeconfig(pki: &Pki, address: impl Display) -> String {
    let encode = |text: &str| STANDARD.encode(text.as_bytes());
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: longshore
  cluster:
    server: https://{address}
    certificate-authority-data: {ca}
users:
- name: admin
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: longshore
  context:
    cluster: longshore
    user: admin
    namespace: default
current-context: longshore
",
        ca = encode(pki.ca_certificate()),
        certificate = encode(&pki.admin().certificate),
        key = encode(&pki.admin().key),
    )
}
