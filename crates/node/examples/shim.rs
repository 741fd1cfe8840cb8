//! The pod shim alone, for tests of the crate; the product runs it as a hidden subcommand.

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args = args.strip_prefix(&["pod-shim".to_owned()][..]).unwrap_or(&args);
    longshore_node::shim::main(args)
}
