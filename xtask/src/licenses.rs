//! License hygiene without a further tool: the allow list is the one in `deny.toml`.
//!
//! `cargo deny check` reads the same file and checks more; this check needs nothing but cargo.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// Fails when a dependency's license expression cannot be met from the allow list.
pub fn check() -> Result<()> {
    let allowed = allowed()?;
    let text = run::output("cargo", &["metadata", "--format-version", "1", "--locked"])?;
    let metadata: serde_json::Value = serde_json::from_str(&text).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let mut bad = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or("?");
        let license = package["license"].as_str().unwrap_or("");
        if !satisfied(license, &allowed) {
            bad.push(format!("{name}: {license:?}"));
        }
    }
    if !bad.is_empty() {
        bail!("licenses that deny.toml does not allow:\n  {}", bad.join("\n  "));
    }
    eprintln!("licenses: {} packages, all allowed", packages.len());
    Ok(())
}

fn allowed() -> Result<BTreeSet<String>> {
    let text =
        fs::read_to_string(run::root().join("deny.toml")).context("cannot read deny.toml")?;
    let list = text.split("allow = [").nth(1).context("deny.toml has no allow list")?;
    let list = list.split(']').next().unwrap_or_default();
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// SPDX expressions as they occur: `A OR B`, `A AND B`, `A/B`, brackets around alternatives.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    !expression.is_empty()
        && flat
            .split(" AND ")
            .all(|part| part.split(" OR ").any(|one| allowed.contains(one.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]);
        for (expression, want) in [
            ("MIT", true),
            ("Apache-2.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("ISC AND MIT", true),
            ("ISC AND OpenSSL", false),
            ("(MIT OR GPL-2.0) AND ISC", true),
            ("GPL-3.0", false),
            ("", false),
        ] {
            assert_eq!(satisfied(expression, &allowed), want, "{expression}");
        }
    }
}
