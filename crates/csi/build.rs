//! Generates the gRPC code from `proto/` with a compiler written in Rust, so no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let files = ["proto/csi.proto", "proto/pluginregistration.proto"];

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    let mut config = tonic_prost_build::Config::new();
    // Full names let a message find its own descriptor, which is what log redaction needs.
    config.enable_type_names().btree_map(["."]);
    tonic_prost_build::configure()
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;

    // The raw set keeps custom options such as `csi_secret`; the typed set above drops them.
    let mut bare = protox::Compiler::new(["proto"])?;
    bare.include_imports(true).include_source_info(false).open_files(files)?;
    std::fs::write(out.join("descriptors.bin"), bare.encode_file_descriptor_set())?;
    Ok(())
}
