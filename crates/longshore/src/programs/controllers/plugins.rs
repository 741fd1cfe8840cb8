//! Flags of kube-controller-manager for plugins that do not run here.

use std::path::PathBuf;

use crate::flags::values;

/// Accepted, so that a command line can be taken over; each one that changes something is noted in the
/// log.
#[derive(Debug, Clone, clap::Args)]
#[command(
    next_help_heading = "Plugins that kube-controller-manager runs and this program does not"
)]
pub(super) struct PluginFlags {
    /// Accepted: Recycle is refused with an event on the volume.
    #[arg(long, default_value = "300", value_parser = values::int32, allow_hyphen_values = true, value_name = "SECONDS")]
    pv_recycler_minimum_timeout_nfs: i32,
    /// Accepted: Recycle is refused with an event on the volume.
    #[arg(long, default_value = "30", value_parser = values::int32, allow_hyphen_values = true, value_name = "SECONDS")]
    pv_recycler_increment_timeout_nfs: i32,
    /// Accepted: Recycle is refused with an event on the volume.
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
    /// Accepted: Recycle is refused with an event on the volume.
    #[arg(long, default_value = "60", value_parser = values::int32, allow_hyphen_values = true, value_name = "SECONDS")]
    pv_recycler_minimum_timeout_hostpath: i32,
    /// Accepted: Recycle is refused with an event on the volume.
    #[arg(long, default_value = "30", value_parser = values::int32, allow_hyphen_values = true, value_name = "SECONDS")]
    pv_recycler_timeout_increment_hostpath: i32,
    /// Accepted: Recycle is refused with an event on the volume.
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
    /// Accepted: FlexVolume drivers are the nodes' alone; none runs beside the controllers.
    #[arg(long, value_name = "DIR")]
    flex_volume_plugin_dir: Option<PathBuf>,
}

impl PluginFlags {
    /// What to log at the start.
    pub(super) fn notes(self) -> Vec<String> {
        let Self {
            pv_recycler_minimum_timeout_nfs,
            pv_recycler_increment_timeout_nfs,
            pv_recycler_pod_template_filepath_nfs,
            pv_recycler_minimum_timeout_hostpath,
            pv_recycler_timeout_increment_hostpath,
            pv_recycler_pod_template_filepath_hostpath,
            flex_volume_plugin_dir,
        } = self;
        let recycler = "volumes are never recycled; a Released one with policy Recycle becomes Failed, with an event. \
            Use Retain, or Delete with a provisioner";
        let flex = "no FlexVolume driver runs beside the controllers; nodes expand such volumes";
        let rows = [
            (pv_recycler_minimum_timeout_nfs != 300, "minimum-timeout-nfs"),
            (pv_recycler_increment_timeout_nfs != 30, "increment-timeout-nfs"),
            (pv_recycler_pod_template_filepath_nfs.is_some(), "pod-template-filepath-nfs"),
            (pv_recycler_minimum_timeout_hostpath != 60, "minimum-timeout-hostpath"),
            (pv_recycler_timeout_increment_hostpath != 30, "timeout-increment-hostpath"),
            (
                pv_recycler_pod_template_filepath_hostpath.is_some(),
                "pod-template-filepath-hostpath",
            ),
        ];
        let changed = rows.into_iter().filter(|(changed, _)| *changed);
        changed
            .map(|(_, flag)| format!("--pv-recycler-{flag} has no effect: {recycler}"))
            .chain(
                flex_volume_plugin_dir
                    .map(|_| format!("--flex-volume-plugin-dir has no effect: {flex}")),
            )
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Flags};
    use crate::cli::{Program as _, testing::flags};

    fn notes(line: &str) -> Vec<String> {
        let config = flags::<Flags>(line, &[]).map(Config::from_flags).expect("flags");
        config.expect("a config").logging.notes
    }

    #[test]
    fn a_plugin_that_does_not_run_is_noted_once() {
        assert!(notes("").is_empty());
        // What kube-controller-manager would do anyway is not worth a line.
        assert!(notes("--pv-recycler-minimum-timeout-nfs=300").is_empty());
        for (line, part) in [
            (
                "--pv-recycler-minimum-timeout-nfs=600",
                "--pv-recycler-minimum-timeout-nfs has no effect",
            ),
            ("-pv-recycler-increment-timeout-nfs 0x3c", "--pv-recycler-increment-timeout-nfs has"),
            (
                "--pv-recycler-pod-template-filepath-nfs=/t",
                "--pv-recycler-pod-template-filepath-nfs has",
            ),
            (
                "--pv-recycler-minimum-timeout-hostpath=-1",
                "--pv-recycler-minimum-timeout-hostpath has",
            ),
            (
                "--pv-recycler-timeout-increment-hostpath=1",
                "--pv-recycler-timeout-increment-hostpath has",
            ),
            (
                "--pv-recycler-pod-template-filepath-hostpath /t",
                "--pv-recycler-pod-template-filepath-hostpath has",
            ),
            ("--flex-volume-plugin-dir=/opt", "--flex-volume-plugin-dir has no effect"),
        ] {
            let notes = notes(line);
            assert!(matches!(&notes[..], [note] if note.starts_with(part)), "{line}: {notes:?}");
        }
    }
}
