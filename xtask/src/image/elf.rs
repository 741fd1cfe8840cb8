//! Which libraries a program loads.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

/// What a program or library asks the loader for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Names of libraries.
    pub libraries: Vec<String>,
    /// The loader's path; libraries have none.
    pub loader: Option<String>,
}

/// Reads it from a file. A file that is no program, a script for example, needs nothing.
pub fn needs(file: &Path) -> Result<Needs> {
    let mut magic = [0; 4];
    let mut open = std::fs::File::open(file).with_context(|| file.display().to_string())?;
    if std::io::Read::read_exact(&mut open, &mut magic).is_err() || magic != *b"\x7fELF" {
        return Ok(Needs::default());
    }
    let output = Command::new("readelf").args(["-W", "-d", "-l"]).arg(file).output();
    let output = output.context("cannot run readelf (package binutils)")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("readelf {}: {}", file.display(), why.trim());
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(text: &str) -> Needs {
    let between = |line: &str, from: &str| {
        let rest = line.split_once(from)?.1;
        Some(rest.split_once(']')?.0.to_owned())
    };
    let libraries = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| between(line, "Shared library: ["))
        .collect();
    let loader = text.lines().find_map(|line| between(line, "[Requesting program interpreter: "));
    Needs { libraries, loader }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_read() {
        let text = "  INTERP         0x000318\n      [Requesting program interpreter: /lib64/ld-linux.so.2]\n\
             Dynamic section at offset 0x5da8 contains 29 entries:\n\
              0x0000000000000001 (NEEDED)             Shared library: [libblkid.so.1]\n\
              0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n\
              0x000000000000000c (INIT)               0x3000\n";
        let needs = parse(text);
        assert_eq!(needs.libraries, ["libblkid.so.1", "libc.so.6"]);
        assert_eq!(needs.loader.as_deref(), Some("/lib64/ld-linux.so.2"));
    }

    #[test]
    fn a_program_of_this_machine_loads_the_c_library() {
        let own = needs(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.libraries.iter().any(|name| name.starts_with("libc.so")), "{own:?}");
        assert_eq!(needs(Path::new("/etc/hostname")).unwrap(), Needs::default());
    }
}
