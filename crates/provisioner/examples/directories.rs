//! A provisioner that makes a directory for each claim, on the machine it runs on.
//!
//! ```text
//! cargo run -p longshore-provisioner --example directories -- --kubeconfig FILE --root DIR [--node NAME]
//! ```
//!
//! Then make a class whose provisioner is `example.com/directories`, and a claim of that class. It is
//! as short as it can be; `longshore hostpath-provisioner` is what to run where data matters.

use std::{io, path::PathBuf};

use longshore_provisioner::{
    ClientConfig, Config, DeleteError, Host, ProvisionError, ProvisionedVolume, Provisioner,
    Request, Volume, on_signals,
};
use serde_json::json;

const NAME: &str = "example.com/directories";

struct Directories {
    root: PathBuf,
    node: Option<String>,
}

impl Provisioner for Directories {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        // The same claim gets the same name, so a repeated request finds the directory it made.
        let path = self.root.join(request.volume.as_str());
        std::fs::create_dir_all(&path).map_err(|error| ProvisionError::Final(error.into()))?;
        let made = ProvisionedVolume::new(
            request,
            json!({"hostPath": {"path": path, "type": "Directory"}}),
        );
        Ok(match &self.node {
            Some(node) => made.pinned("kubernetes.io/hostname", node),
            None => made,
        })
    }

    async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        match std::fs::remove_dir_all(self.root.join(&volume.metadata.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DeleteError::Failed(error.into()))
            }
            _ => Ok(()),
        }
    }
}

/// The value after a flag.
fn flag(name: &str) -> Option<String> {
    std::env::args().skip_while(|one| one != name).nth(1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(flag("--root").ok_or("say where: --root DIR")?);
    let client =
        ClientConfig { kubeconfig: flag("--kubeconfig").map(PathBuf::from), ..Default::default() };
    let host = Host::connect(&client).await?;
    let directories = Directories { root, node: flag("--node") };
    println!("{NAME} works until it gets a signal");
    Ok(host.with(Config::new(NAME), directories).run(on_signals()?).await?)
}
