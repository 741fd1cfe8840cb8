//! The list of all that is in the image, in CycloneDX 1.6: crates and Debian packages, with versions and
//! checksums.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Arch, Source, by_name, packages::Pin};
use crate::run;

/// The crates that are linked into the binary, and the packages.
pub fn components(arch: Arch, packages: &[Pin]) -> Result<Vec<Value>> {
    let format = "{p}|{l}";
    let line = ["tree", "--locked", "--package", "longshore", "--edges", "normal"];
    let line = [&line[..], &["--target", arch.target(), "--prefix", "none", "--format", format]];
    let tree = run::output("cargo", &line.concat())?;
    let lock = fs::read_to_string(run::root().join("Cargo.lock")).context("Cargo.lock")?;
    let mut components = crates(&tree, &checksums(&lock));
    components.extend(by_name(packages).into_iter().map(package));
    Ok(components)
}

/// The document.
pub fn document(
    components: &[Value],
    name: &str,
    digest: &str,
    source: &Source,
) -> Result<Vec<u8>> {
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": source.created,
            "component": {
                "type": "container",
                "bom-ref": name,
                "name": name,
                "version": digest,
                "licenses": [{"expression": "Apache-2.0"}],
                "properties": [{"name": "revision", "value": source.revision}],
            },
        },
        "components": components,
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

/// Checksums by name and version, as `Cargo.lock` has them. Crates of this repository have none.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    lock.split("[[package]]")
        .filter_map(|block| {
            let key = (value(block, "name")?, value(block, "version")?);
            Some((key, value(block, "checksum")?))
        })
        .collect()
}

fn crates(tree: &str, sums: &BTreeMap<(String, String), String>) -> Vec<Value> {
    let mut found = BTreeMap::new();
    for line in tree.lines() {
        let Some((package, license)) = line.split_once('|') else { continue };
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let key = (name.to_owned(), version.trim_start_matches('v').to_owned());
        found.insert(key, license.trim_end_matches("(*)").trim().replace('/', " OR "));
    }
    found
        .into_iter()
        .map(|((name, version), license)| {
            let purl = format!("pkg:cargo/{name}@{version}");
            let mut component = json!({"type": "library", "bom-ref": purl, "name": name,
                "version": version, "purl": purl, "licenses": [{"expression": license}]});
            if let Some(sum) = sums.get(&(name, version)) {
                component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            component
        })
        .collect()
}

fn package(pin: &Pin) -> Value {
    let Pin { name, version, arch, sha256 } = pin;
    let escaped = version.replace('+', "%2B").replace(':', "%3A");
    let purl = format!("pkg:deb/debian/{name}@{escaped}?arch={arch}");
    json!({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_have_the_checksums_of_the_lock_file() {
        let lock = "[[package]]\nname = \"hex\"\nversion = \"0.4.3\"\nsource = \"registry\"\n\
                    checksum = \"7f24\"\n\n[[package]]\nname = \"longshore\"\nversion = \"0.1.0\"\n";
        let tree = "longshore v0.1.0 (/src)|Apache-2.0\nhex v0.4.3|MIT/Apache-2.0\nhex v0.4.3|MIT/Apache-2.0 (*)\n";
        let found = crates(tree, &checksums(lock));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0]["purl"], "pkg:cargo/hex@0.4.3");
        assert_eq!(found[0]["hashes"][0]["content"], "7f24");
        assert_eq!(found[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert!(found[1]["hashes"].is_null());
    }

    #[test]
    fn a_debian_version_is_escaped_in_its_address() {
        let pin = Pin {
            name: "zlib1g".to_owned(),
            version: "1:1.2.13.dfsg-1+b1".to_owned(),
            arch: "amd64".to_owned(),
            sha256: "00".to_owned(),
        };
        let want = "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1%2Bb1?arch=amd64";
        assert_eq!(package(&pin)["purl"], want);
    }
}
