//! Tokens of service accounts: signed statements that name an account and end by themselves.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use serde_json::{Value, json};

/// Who issues the tokens, and who they are for unless the request says otherwise.
pub(crate) const ISSUER: &str = "https://kubernetes.default";

/// A token is accepted this long before it was issued: clocks differ.
const CLOCK_SKEW_SECONDS: i64 = 60;

/// What a token can be bound to: it ends with that object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    /// `pod`, `secret` or `node`.
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// For a pod on a node: which one.
    pub node: Option<OnNode>,
}

/// The node of a pod that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnNode {
    pub name: String,
    /// Uid; absent when there is no such node.
    pub uid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    pub namespace: String,
    pub account: String,
    pub uid: String,
    /// Who the token is for.
    pub audiences: Vec<String>,
    /// When it was made, in seconds.
    pub issued: i64,
    /// When it ends, in seconds.
    pub expires: i64,
    /// Its own name.
    pub id: String,
    /// What it is bound to.
    pub bound: Option<Bound>,
}

/// Why a token is refused. The texts are for the log: they never hold any of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("it is not a signed token with the claims of a service account")]
    Malformed,
    #[error("it is not signed with ES256")]
    Algorithm,
    #[error("this server has not signed it, or it was changed")]
    Signature,
    #[error("its issuer is another one")]
    Issuer,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("it is for another audience")]
    Audience,
    #[error("its service account, or the object that it is bound to, is gone")]
    Gone,
}

/// Signs and checks tokens.
#[derive(Clone)]
pub(crate) struct Signer {
    key: Arc<EcdsaKeyPair>,
    key_id: String,
}

impl Signer {
    /// A new private key, as base64 of its PKCS#8 form.
    pub(crate) fn make_key() -> Option<String> {
        let made =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Some(URL_SAFE_NO_PAD.encode(made.ok()?.as_ref()))
    }

    /// A signer with a key made by [`Signer::make_key`].
    pub(crate) fn open(key: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(key.trim()).ok()?;
        let random = SystemRandom::new();
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &bytes, &random).ok()?;
        let hash = ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref());
        let key_id = URL_SAFE_NO_PAD.encode(hash.as_ref());
        Some(Self { key: Arc::new(key), key_id })
    }

    /// Makes a token; `None` when there is no randomness.
    pub(crate) fn sign(&self, claims: &Claims) -> Option<String> {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&header), encode(&claims.to_value()));
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes()).ok()?;
        Some(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }

    /// What a token says, if we signed it and it has not ended.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn check(&self, token: &str, now: i64) -> Result<Claims, TokenError> {
        let malformed = TokenError::Malformed;
        let (text, signature) = token.rsplit_once('.').ok_or(malformed)?;
        let (header, body) = text.split_once('.').ok_or(malformed)?;
        let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed);
        let decode = |part: &str| -> Result<Value, TokenError> {
            serde_json::from_slice(&bytes(part)?).map_err(|_| malformed)
        };
        if decode(header)?["alg"] != "ES256" {
            return Err(TokenError::Algorithm);
        }
        let public =
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        let verified = public.verify(text.as_bytes(), &bytes(signature)?);
        verified.map_err(|_| TokenError::Signature)?;
        let value = decode(body)?;
        let claims = Claims::parse(&value).ok_or(malformed)?;
        if value["iss"] != ISSUER {
            return Err(TokenError::Issuer);
        }
        if now >= claims.expires {
            return Err(TokenError::Expired);
        }
        if now < claims.issued - CLOCK_SKEW_SECONDS {
            return Err(TokenError::NotYetValid);
        }
        Ok(claims)
    }
}

impl Claims {
    fn to_value(&self) -> Value {
        let mut kubernetes = json!({
            "namespace": self.namespace,
            "serviceaccount": {"name": self.account, "uid": self.uid},
        });
        if let Some(bound) = &self.bound {
            kubernetes[&bound.kind] = json!({"name": bound.name, "uid": bound.uid});
            if let Some(node) = &bound.node {
                kubernetes["node"] = json!({"name": node.name});
                if let Some(uid) = &node.uid {
                    kubernetes["node"]["uid"] = uid.as_str().into();
                }
            }
        }
        json!({
            "iss": ISSUER, "sub": self.user(), "aud": self.audiences, "jti": self.id,
            "iat": self.issued, "nbf": self.issued, "exp": self.expires,
            "kubernetes.io": kubernetes,
        })
    }

    fn parse(value: &Value) -> Option<Self> {
        let inner = &value["kubernetes.io"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let audiences = value["aud"].as_array()?.iter().filter_map(text).collect();
        let bound = ["pod", "secret", "node"].iter().find_map(|kind| {
            let bound = inner.get(*kind)?;
            let node = inner.get("node").filter(|_| *kind == "pod");
            let node = node.and_then(|node| {
                Some(OnNode { name: text(&node["name"])?, uid: text(&node["uid"]) })
            });
            Some(Bound {
                kind: (*kind).to_owned(),
                name: text(&bound["name"])?,
                uid: text(&bound["uid"])?,
                node,
            })
        });
        Some(Self {
            namespace: text(&inner["namespace"])?,
            account: text(&inner["serviceaccount"]["name"])?,
            uid: text(&inner["serviceaccount"]["uid"])?,
            audiences,
            issued: value["iat"].as_i64()?,
            expires: value["exp"].as_i64()?,
            id: text(&value["jti"]).unwrap_or_default(),
            bound,
        })
    }

    /// The account's user name.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            namespace: "n".into(),
            account: "bot".into(),
            uid: "u".into(),
            audiences: vec![ISSUER.into()],
            issued: 1000,
            expires: 2000,
            id: "id".into(),
            bound: Some(Bound {
                kind: "pod".into(),
                name: "p".into(),
                uid: "v".into(),
                node: Some(OnNode { name: "n1".into(), uid: Some("w".into()) }),
            }),
        }
    }

    #[test]
    fn tokens_are_read_back_while_they_last() {
        let signer = Signer::open(&Signer::make_key().unwrap()).unwrap();
        let token = signer.sign(&claims()).unwrap();
        assert_eq!(signer.check(&token, 1500), Ok(claims()));
        assert_eq!(signer.check(&token, 2000), Err(TokenError::Expired));
        assert_eq!(signer.check(&token, 0), Err(TokenError::NotYetValid));
    }

    #[test]
    fn only_our_own_tokens_count() {
        let signer = Signer::open(&Signer::make_key().unwrap()).unwrap();
        let other = Signer::open(&Signer::make_key().unwrap()).unwrap();
        let token = other.sign(&claims()).unwrap();
        assert_eq!(signer.check(&token, 1500), Err(TokenError::Signature));
        let own = signer.sign(&claims()).unwrap();
        let (head, rest) = own.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let forged = json!({"iss": ISSUER, "exp": 9999});
        let body = URL_SAFE_NO_PAD.encode(forged.to_string());
        let forged = signer.check(&format!("{head}.{body}.{signature}"), 1500);
        assert_eq!(forged, Err(TokenError::Signature));
        let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none"}).to_string());
        assert_eq!(signer.check(&format!("{unsigned}.{rest}"), 1500), Err(TokenError::Algorithm));
        for nonsense in ["", "a", "a.b", "a.b.c", "...."] {
            assert_eq!(signer.check(nonsense, 1500), Err(TokenError::Malformed));
        }
    }
}
