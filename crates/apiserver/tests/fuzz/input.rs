//! One request, how it is made up, and how it is kept in a file.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use crate::soup::Soup;
use crate::world::World;
use crate::{bodies, schemas};

/// A request.
#[derive(Debug, Clone, Default)]
pub struct Input {
    pub method: String,
    /// Path and query.
    pub path: String,
    pub content_type: String,
    pub accept: String,
    pub body: Vec<u8>,
}

impl Input {
    /// As the corpus keeps it: head lines, an empty line, the body as it is.
    pub fn to_file(&self) -> Vec<u8> {
        let Self { method, path, content_type, accept, body } = self;
        let mut file =
            format!("{method} {path}\nContent-Type: {content_type}\nAccept: {accept}\n\n")
                .into_bytes();
        file.extend_from_slice(body);
        file
    }

    pub fn from_file(file: &[u8]) -> Option<Self> {
        let end = file.windows(2).position(|two| two == b"\n\n")?;
        let head = std::str::from_utf8(&file[..end]).ok()?;
        let mut lines = head.lines();
        let (method, path) = lines.next()?.split_once(' ')?;
        let mut input = Self { method: method.into(), path: path.into(), ..Self::default() };
        for line in lines {
            match line.split_once(": ") {
                Some(("Content-Type", value)) => input.content_type = value.to_owned(),
                Some(("Accept", value)) => input.accept = value.to_owned(),
                _ => {}
            }
        }
        input.body = file[end + 2..].to_vec();
        Some(input)
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.body) {
            Ok(_) => f.write_str(&String::from_utf8_lossy(&self.to_file())),
            Err(_) => {
                let Self { method, path, content_type, accept, body } = self;
                let body = STANDARD.encode(body);
                write!(f, "{method} {path} ({content_type}; {accept}) base64 {body}")
            }
        }
    }
}

pub fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/json",
    "text/plain",
];

const ACCEPT: &[&str] = &[
    "application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    "application/vnd.kubernetes.protobuf, */*",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    "*/*",
    "application/*;q=0.1",
    ";;;,,,=",
    "",
];

/// A request that is made up from nothing.
pub fn make(soup: &mut Soup, world: &World) -> Input {
    let mut input = match soup.below(16) {
        0..=3 => patch(soup, world),
        4 => select(soup, world),
        5 => wander(soup),
        6 => schemas::definition(soup),
        7..=10 => schemas::object(soup, world),
        11 => token(soup, world),
        12 => bodies::protobuf(soup, world),
        13 | 14 => bodies::object(soup, world),
        _ => bodies::below(soup, world),
    };
    if soup.chance(8) {
        input.accept = accept(soup);
    }
    input
}

fn accept(soup: &mut Soup) -> String {
    let mut text = (*soup.pick(ACCEPT)).to_owned();
    if soup.chance(30) {
        let mut bytes = text.into_bytes();
        soup.scramble(&mut bytes);
        bytes.retain(|byte| (32..127).contains(byte));
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

/// Another request, made from one that was answered in a way of its own.
pub fn change(soup: &mut Soup, mut input: Input, others: &[Input]) -> Input {
    match soup.below(10) {
        0 => input.body = soup.pick(others).body.clone(),
        1 => {
            let mut bytes = input.path.into_bytes();
            soup.scramble(&mut bytes);
            bytes.retain(|byte| (33..127).contains(byte));
            input.path = format!("/{}", String::from_utf8_lossy(&bytes).trim_start_matches('/'));
        }
        2 => input.accept = accept(soup),
        3..=6 => {
            if let Ok(mut value) = serde_json::from_slice(&input.body) {
                soup.bend(&mut value);
                input.body = value.to_string().into_bytes();
            }
        }
        _ => soup.scramble(&mut input.body),
    }
    input
}

fn patch(soup: &mut Soup, world: &World) -> Input {
    let target = world.target(soup, "patch");
    let content_type = (*soup.pick(PATCHES)).to_owned();
    let body = match content_type.as_str() {
        "application/json-patch+json" => bodies::steps(soup),
        "application/apply-patch+yaml" => bodies::applied(soup, world, &target),
        _ => bodies::partial(soup, world, &target),
    };
    let mut path = format!("{target}?fieldManager={}", encode(&soup.word()));
    for (name, values) in [
        ("force", ["true", "false"]),
        ("dryRun", ["All", "x"]),
        ("fieldValidation", ["Strict", "Ignore"]),
    ] {
        if soup.chance(20) {
            path.push_str(&format!("&{name}={}", soup.pick(&values)));
        }
    }
    Input { method: "PATCH".into(), path, content_type, body, ..Input::default() }
}

fn select(soup: &mut Soup, world: &World) -> Input {
    let path = world.target(soup, "list");
    let mut pairs = Vec::new();
    for _ in 0..=soup.below(3) {
        let name = ["labelSelector", "fieldSelector", "limit", "watch", "timeoutSeconds"];
        let more = [
            "resourceVersion",
            "resourceVersionMatch",
            "allowWatchBookmarks",
            "sendInitialEvents",
            "continue",
            "pretty",
            "includeObject",
        ];
        let name = if soup.chance(70) { *soup.pick(&name) } else { *soup.pick(&more) };
        let value = match name {
            "labelSelector" | "fieldSelector" => soup.selector(),
            "resourceVersionMatch" => (*soup.pick(&["Exact", "NotOlderThan", "x"])).to_owned(),
            "includeObject" => (*soup.pick(&["None", "Object", "Metadata", "x"])).to_owned(),
            "watch" | "allowWatchBookmarks" | "sendInitialEvents" => {
                (*soup.pick(&["1", "true", "false", "0", ""])).to_owned()
            }
            _ => soup.number().to_owned(),
        };
        pairs.push(format!("{name}={}", encode(&value)));
    }
    let delete = soup.chance(15);
    if delete {
        pairs.push("dryRun=All".into());
    }
    let method = if delete { "DELETE" } else { "GET" };
    let path = format!("{path}?{}", pairs.join("&"));
    Input { method: method.into(), path, ..Input::default() }
}

/// Paths and queries that lead somewhere, or nowhere.
fn wander(soup: &mut Soup) -> Input {
    let parts = [
        "api",
        "apis",
        "v1",
        "watch",
        "namespaces",
        "default",
        "pods",
        "x",
        "status",
        "log",
        "scale",
        "storage.k8s.io",
        "storageclasses",
        "openapi",
        "v2",
        "v3",
        "healthz",
        "readyz",
        "metrics",
        "version",
        "..",
        ".",
        "",
        "%2e%2e",
        "%2F",
        "%00",
        "%ff",
        "%",
        "%zz",
        "example.com",
        "walks",
        "*",
        "events.k8s.io",
        "events",
        "proxy",
        "token",
        "binding",
        "finalize",
        "eviction",
    ];
    let count = soup.below(8);
    let mut path: String = (0..count)
        .map(|_| match soup.chance(85) {
            true => format!("/{}", soup.pick(&parts)),
            false => format!("/{}", encode(&soup.word())),
        })
        .collect();
    if path.is_empty() {
        path.push('/');
    }
    if soup.chance(50) {
        let names = ["watch", "verbose", "exclude", "limit", "dryRun", "pretty", "timeout", "hash"];
        let pairs: Vec<String> = (0..=soup.below(3))
            .map(|_| {
                let name =
                    if soup.chance(80) { (*soup.pick(&names)).to_owned() } else { soup.word() };
                format!("{}={}", encode(&name), encode(&soup.word()))
            })
            .collect();
        path.push_str(&format!("?{}", pairs.join(*soup.pick(&["&", ";", "&&", "&=&"]))));
    }
    let methods = ["GET", "GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "X"];
    let body = if soup.chance(30) { soup.value(3).to_string().into_bytes() } else { Vec::new() };
    Input { method: (*soup.pick(&methods)).to_owned(), path, body, ..Input::default() }
}

/// Continue tokens, real ones bent and made-up ones.
fn token(soup: &mut Soup, world: &World) -> Input {
    let inner = match soup.below(4) {
        0 => soup.value(2).to_string().into_bytes(),
        1 => {
            let (key, version) = (soup.word(), soup.number());
            json!({"v": "meta.k8s.io/v1", "rv": version.parse::<i64>().unwrap_or(-1), "start": key})
                .to_string()
                .into_bytes()
        }
        _ => {
            let real = URL_SAFE_NO_PAD.decode(world.continue_token.trim_end_matches('='));
            let mut real = real.unwrap_or_else(|_| world.continue_token.clone().into_bytes());
            soup.scramble(&mut real);
            real
        }
    };
    let mut text = match soup.below(3) {
        0 => world.continue_token.clone(),
        1 => STANDARD.encode(&inner),
        _ => URL_SAFE_NO_PAD.encode(&inner),
    };
    if soup.chance(30) {
        let mut bytes = text.into_bytes();
        soup.scramble(&mut bytes);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let limit = soup.number();
    let place =
        if soup.chance(60) { "/api/v1/configmaps".to_owned() } else { world.target(soup, "list") };
    let path = format!("{place}?limit={}&continue={}", encode(limit), encode(&text));
    Input { method: "GET".into(), path, ..Input::default() }
}
