//! The cluster's own CA and the certificates and keys it gives out.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Pair {
    /// Writes `NAME.crt` and `NAME.key`.
    pub(crate) fn save(&self, dir: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
        let files = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        write_private(&files.0, &self.certificate)?;
        write_private(&files.1, &self.key)?;
        Ok(files)
    }
}

/// A certificate authority.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pair: Pair,
}

impl Ca {
    /// A new one, valid for some years.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate().context("cannot make the CA's key")?;
        let mut params = params(&[])?;
        params.distinguished_name.push(DnType::CommonName, "longshore-real-kube");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params.self_signed(&key).context("cannot make the CA")?.pem();
        let pair = Pair { certificate, key: key.serialize_pem() };
        Ok(Self { issuer: Issuer::new(params, key), pair })
    }

    /// The CA's own certificate and key.
    #[must_use]
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// A client certificate: the user is the common name, each group (at most two) an organization.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        // The library keeps one value per kind of name; the second spelling of the organization's
        // number makes room for a second group, which is as many as a service account has.
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        if groups.len() > kinds.len() {
            bail!("cannot make a certificate for {user}: at most {} groups fit", kinds.len());
        }
        let mut params = params(&[])?;
        params.distinguished_name.push(DnType::CommonName, user);
        for (kind, group) in kinds.into_iter().zip(groups) {
            params.distinguished_name.push(kind, DnValue::Utf8String((*group).to_owned()));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, user)
    }

    /// A serving certificate for loopback and these names.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn serving(&self, names: &[&str]) -> Result<Pair> {
        self.server("longshore-real-kube-serving", names, &[ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// A serving certificate with which a server may also ask others.
    pub(crate) fn serving_and_client(&self, name: &str, names: &[&str]) -> Result<Pair> {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.server(name, names, &both)
    }

    fn server(
        &self,
        name: &str,
        names: &[&str],
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Result<Pair> {
        let mut params = params(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.extended_key_usages = usages.to_vec();
        self.sign(params, name)
    }

    fn sign(&self, mut params: CertificateParams, whom: &str) -> Result<Pair> {
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate().context("cannot make a key")?;
        let signed = params.signed_by(&key, &self.issuer);
        let certificate =
            signed.with_context(|| format!("cannot make a certificate for {whom}"))?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

/// A key pair with which service account tokens are signed: private and public key.
pub(crate) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate().context("cannot make the service account key")?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Writes a file that only its owner may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn params(names: &[&str]) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).context("cannot describe a certificate")?;
    params.not_before = rcgen::date_time_ymd(2024, 1, 1);
    params.not_after = rcgen::date_time_ymd(2049, 1, 1);
    params.distinguished_name.remove(DnType::CommonName);
    Ok(params)
}
