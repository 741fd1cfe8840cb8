//! Keys and certificates: a CA of our own, made at first start.
//!
//! On disk are the CA, the administrator's certificate and token, and the key that signs tokens of
//! service accounts (mode 0600). The serving
//! certificate is created at each start and never stored. A file appears only when it is
//! complete, keys before the certificates that name them, so a kill at any moment leaves a
//! directory that the next start can finish.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use sha2::{Digest, Sha256};

use super::serving::{AskNames, ServerNames, Serving};
use super::tokens::Signer;
use super::{Identity, MASTERS, sums};

/// All files of the directory.
const KEY_FILES: [&str; 6] =
    ["ca.key", "ca.crt", "admin.key", "admin.crt", "admin.token", "accounts.key"];
const CA_NAME: &str = "longshore-ca";
const ADMIN_NAME: &str = "admin";
/// The attribute of a certificate's subject that holds the user's uid in Kubernetes.
const UID_ATTRIBUTE: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];
/// Names under which the server is reached, beside its addresses.
const SERVER_NAMES: &[&str] =
    &["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
const TOKEN_BYTES: usize = 32;

/// Why keys cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    /// A file does not hold what it should.
    #[error("{} does not hold a usable {what}: {why}", path.display())]
    Unusable {
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        why: String,
    },
    /// A file is not the one that was made.
    #[error(
        "{} cannot be used: {why}; restore it from a backup, or move {} away to have all keys made \
         anew (every kubeconfig and token is then made anew, too)",
        path.display(), dir.display()
    )]
    Changed {
        path: PathBuf,
        why: &'static str,
        /// The directory of all keys.
        dir: PathBuf,
    },
    /// A certificate cannot be made.
    #[error("making {what}: {why}")]
    Make { what: &'static str, why: String },
}

fn make_error(what: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |error| PkiError::Make { what, why: error.to_string() }
}

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Everything a server and its administrator need.
pub struct Pki {
    ca: Pair,
    admin: Pair,
    /// SHA-256 of the administrator's token: comparing hashes leaks nothing about the token.
    token_hash: [u8; 32],
    signer: Signer,
}

impl Pki {
    /// Reads keys from a directory and makes those that are missing; `None` keeps them in memory.
    ///
    /// # Errors
    /// When files cannot be read or written, or hold something else.
    pub fn open(dir: Option<&Path>) -> Result<Self, PkiError> {
        let files = Files { dir };
        files.make_dir()?;
        files.check()?;
        let ca = match files.pair("ca")? {
            Some(pair) => pair,
            None => files.save_pair("ca", make_ca()?)?,
        };
        let admin = match files.pair("admin")? {
            Some(pair) => pair,
            None => files.save_pair("admin", make_admin(&ca)?)?,
        };
        let token = match files.read("admin.token")? {
            Some(token) if !token.trim().is_empty() => token.trim().to_owned(),
            _ => {
                let token = make_token()?;
                files.save("admin.token", &token)?;
                token
            }
        };
        let signer = files.signer()?;
        files.record()?;
        Ok(Self { ca, admin, token_hash: Sha256::digest(token.as_bytes()).into(), signer })
    }

    pub fn ca_certificate(&self) -> &str {
        &self.ca.certificate
    }

    /// The administrator's certificate and key.
    pub fn admin(&self) -> &Pair {
        &self.admin
    }

    /// Signs and checks tokens of service accounts.
    pub(crate) fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Who a bearer token stands for.
    pub fn identify_token(&self, token: &str) -> Option<Identity> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let admin = || Identity {
            uid: ADMIN_NAME.into(),
            ..Identity::new(ADMIN_NAME, [MASTERS, "system:authenticated"])
        };
        (hash == self.token_hash).then(admin)
    }

    /// A serving certificate for what `ask` names.
    ///
    /// # Errors
    /// When the CA's key is unusable, or a name cannot be in a certificate.
    pub(crate) fn serving(&self, ask: AskNames) -> Result<Arc<Serving>, PkiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Serving::new(self.ca.clone(), ask, provider).map(Arc::new)
    }

    /// TLS settings for a server with this certificate.
    ///
    /// # Errors
    /// When the CA's certificate is unusable.
    pub(crate) fn server_config(
        &self,
        serving: &Arc<Serving>,
    ) -> Result<Arc<ServerConfig>, PkiError> {
        let fail = |why: String| PkiError::Make { what: "TLS settings", why };
        let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.ca.certificate.as_bytes())
            .map_err(|e| fail(e.to_string()))?;
        roots.add(ca).map_err(|e| fail(e.to_string()))?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .map_err(|e| fail(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| fail(e.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(serving) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Who a verified client certificate stands for: common name, uid and organizations.
pub fn identify_certificate(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let mut groups: Vec<String> = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok().map(str::to_owned))
        .collect();
    groups.push("system:authenticated".into());
    let oid = x509_parser::der_parser::Oid::from(UID_ATTRIBUTE).ok()?;
    let uid = subject.iter_by_oid(&oid).next().and_then(|uid| uid.as_str().ok());
    Some(Identity { uid: uid.unwrap_or_default().to_owned(), ..Identity::new(user, groups) })
}

/// Certificates outlive any one machine's wrong clock, but not forever.
const VALID_YEARS: i32 = 10;

fn params(names: Vec<String>, what: &'static str) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(names).map_err(make_error(what))?;
    let year = i32::from(jiff::Zoned::now().year());
    params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
    params.not_after = rcgen::date_time_ymd(year + VALID_YEARS, 1, 1);
    params.distinguished_name.remove(DnType::CommonName);
    Ok(params)
}

fn ca_params() -> Result<CertificateParams, PkiError> {
    let mut params = params(Vec::new(), "the CA")?;
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn make_ca() -> Result<Pair, PkiError> {
    let key = KeyPair::generate().map_err(make_error("the CA's key"))?;
    let certificate = ca_params()?.self_signed(&key).map_err(make_error("the CA"))?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The CA as a signer. Its certificate always has the same name, so the key is enough.
fn issuer(ca: &Pair) -> Result<Issuer<'static, KeyPair>, PkiError> {
    let key = KeyPair::from_pem(&ca.key).map_err(make_error("a signer from the CA's key"))?;
    Ok(Issuer::new(ca_params()?, key))
}

fn make_admin(ca: &Pair) -> Result<Pair, PkiError> {
    let what = "the administrator's certificate";
    let key = KeyPair::generate().map_err(make_error(what))?;
    let mut params = params(Vec::new(), what)?;
    params.distinguished_name.push(DnType::OrganizationName, MASTERS);
    params.distinguished_name.push(DnType::CommonName, ADMIN_NAME);
    params.distinguished_name.push(DnType::CustomDnType(UID_ATTRIBUTE.to_vec()), ADMIN_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer(ca)?).map_err(make_error(what))?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

pub(super) fn make_serving(
    ca: &Pair,
    reached: &ServerNames,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), PkiError> {
    let what = "the serving certificate";
    let key = KeyPair::generate().map_err(make_error(what))?;
    let mut names: BTreeSet<String> = SERVER_NAMES.iter().map(|n| (*n).to_owned()).collect();
    names.extend(reached.names.iter().cloned());
    let mut params = params(names.into_iter().collect(), what)?;
    for address in reached.all_addresses() {
        params.subject_alt_names.push(SanType::IpAddress(address));
    }
    params.distinguished_name.push(DnType::CommonName, "longshore-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &issuer(ca)?).map_err(make_error(what))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok((certificate.der().clone(), key))
}

fn make_token() -> Result<String, PkiError> {
    let mut bytes = [0; TOKEN_BYTES];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random
        .fill(&mut bytes)
        .map_err(|_| PkiError::Make { what: "a token", why: "no randomness".into() })?;
    Ok(hex::encode(bytes))
}

/// The directory of keys, if there is one.
struct Files<'a> {
    dir: Option<&'a Path>,
}

impl Files<'_> {
    fn make_dir(&self) -> Result<(), PkiError> {
        let Some(dir) = self.dir else { return Ok(()) };
        let fail = |source| PkiError::File { operation: "making", path: dir.into(), source };
        longshore_files::make_private_dir(dir).map_err(fail)
    }

    /// Refuses keys that are not those that were made.
    fn check(&self) -> Result<(), PkiError> {
        let Some(dir) = self.dir else { return Ok(()) };
        sums::check(dir).map_err(|(path, why)| PkiError::Changed { path, why, dir: dir.into() })
    }

    fn record(&self) -> Result<(), PkiError> {
        let Some(dir) = self.dir else { return Ok(()) };
        match sums::record(dir, &KEY_FILES) {
            // They are recorded at a start that finds room.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(()),
            other => other.map_err(|source| PkiError::File {
                operation: "recording checksums in",
                path: dir.into(),
                source,
            }),
        }
    }

    fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        let Some(dir) = self.dir else { return Ok(None) };
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PkiError::File { operation: "reading", path, source }),
        }
    }

    fn save(&self, name: &str, text: &str) -> Result<(), PkiError> {
        let Some(dir) = self.dir else { return Ok(()) };
        let path = dir.join(name);
        longshore_files::write_private(&path, text).map_err(|source| PkiError::File {
            operation: "writing",
            path,
            source,
        })
    }

    /// The key that signs tokens, made at first.
    fn signer(&self) -> Result<Signer, PkiError> {
        const NAME: &str = "accounts.key";
        let what = "a key for tokens";
        let key = match self.read(NAME)? {
            Some(key) => key,
            None => {
                let made = Signer::make_key();
                let key = made.ok_or(PkiError::Make { what, why: "no randomness".into() })?;
                self.save(NAME, &key)?;
                key
            }
        };
        Signer::open(&key).ok_or_else(|| PkiError::Unusable {
            path: self.dir.map(|dir| dir.join(NAME)).unwrap_or_default(),
            what,
            why: "it is damaged".into(),
        })
    }

    /// A pair is there when its certificate is: the key was written before.
    fn pair(&self, name: &str) -> Result<Option<Pair>, PkiError> {
        let Some(certificate) = self.read(&format!("{name}.crt"))? else { return Ok(None) };
        let file = format!("{name}.key");
        let unusable = |why: String| PkiError::Unusable {
            path: self.dir.unwrap_or(Path::new("")).join(&file),
            what: "private key",
            why,
        };
        let key = self.read(&file)?.ok_or_else(|| unusable("it is missing".into()))?;
        KeyPair::from_pem(&key).map_err(|e| unusable(e.to_string()))?;
        Ok(Some(Pair { certificate, key }))
    }

    fn save_pair(&self, name: &str, pair: Pair) -> Result<Pair, PkiError> {
        self.save(&format!("{name}.key"), &pair.key)?;
        self.save(&format!("{name}.crt"), &pair.certificate)?;
        Ok(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn keys_are_private_and_stay_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(Some(dir.path())).unwrap();
        let token = fs::read_to_string(dir.path().join("admin.token")).unwrap();
        for entry in fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        }
        let second = Pki::open(Some(dir.path())).unwrap();
        assert_eq!(first.ca_certificate(), second.ca_certificate());
        assert!(second.identify_token(&token).unwrap().is_master());
        assert!(second.identify_token("guess").is_none());
    }

    #[test]
    fn a_half_made_directory_is_finished_and_a_broken_one_reported() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.key"), "left over by a kill").unwrap();
        Pki::open(Some(dir.path())).unwrap();
        fs::write(dir.path().join("ca.key"), "damaged").unwrap();
        let error = Pki::open(Some(dir.path())).err().unwrap();
        assert!(error.to_string().contains("ca.key"), "{error}");
    }

    #[test]
    fn a_key_that_is_missing_cut_or_changed_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(Some(dir.path())).unwrap();
        for name in KEY_FILES {
            let path = dir.path().join(name);
            let whole = fs::read(&path).unwrap();
            let mut flipped = whole.clone();
            flipped[whole.len() / 2] ^= 1;
            for damaged in [None, Some(&b""[..]), Some(&whole[..whole.len() / 2]), Some(&flipped)] {
                match damaged {
                    None => fs::remove_file(&path).unwrap(),
                    Some(content) => fs::write(&path, content).unwrap(),
                }
                let error = Pki::open(Some(dir.path())).err().unwrap().to_string();
                assert!(error.contains(name) && error.contains("backup"), "{name}: {error}");
                fs::write(&path, &whole).unwrap();
            }
        }
        fs::write(dir.path().join("sums"), "damaged").unwrap();
        Pki::open(Some(dir.path())).unwrap();
    }

    #[test]
    fn the_admin_certificate_names_the_master_group() {
        let pki = Pki::open(None).unwrap();
        let der = CertificateDer::from_pem_slice(pki.admin().certificate.as_bytes()).unwrap();
        let identity = identify_certificate(&der).unwrap();
        assert_eq!(identity.user, ADMIN_NAME);
        assert!(identity.is_master());
    }
}
