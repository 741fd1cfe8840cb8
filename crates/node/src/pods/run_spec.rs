//! The shim's request for one run of a container.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use longshore_core::model::kinds::{Container, Pod};
use longshore_core::stage::paths::NodePaths;

use super::admission::seccomp;
use super::cgroups::{Cgroups, Devices};
use super::environment::{StartError, expand, hostname, hosts};
use super::host_path;
use crate::shim::protocol::{Bind, Cgroup, ContainerRun, LogLimit, Sandbox};
use crate::shim::rights::{self, UnknownCapability};

/// What all containers of a pod share.
pub(crate) struct PodRun<'a> {
    pub pod: &'a Pod,
    pub paths: &'a NodePaths,
    pub hidden: &'a [PathBuf],
    /// By the pod's name for the volume.
    pub volumes: &'a BTreeMap<String, PathBuf>,
    pub log_limit: LogLimit,
    pub cgroups: &'a Cgroups,
}

impl PodRun<'_> {
    /// The shim's request for one run.
    pub(crate) fn container(
        &self,
        container: &Container,
        attempt: u32,
        env: Vec<(String, String)>,
        message_file: Option<Bind>,
    ) -> Result<ContainerRun, StartError> {
        let values: BTreeMap<String, String> = env.iter().cloned().collect();
        let argv: Vec<String> = container
            .command
            .iter()
            .chain(&container.args)
            .map(|text| expand(text, &values))
            .collect();
        if argv.is_empty() {
            let text = "no command specified: the image \"host\" has no program of its own";
            return Err(StartError::Spec(text.to_owned()));
        }
        let (own, pod) = (&container.security_context, &self.pod.spec.security_context);
        let uid = own.run_as_user.or(pod.run_as_user).unwrap_or(0);
        if uid == 0 && own.run_as_non_root.or(pod.run_as_non_root) == Some(true) {
            let text = "container has runAsNonRoot and would run as root";
            return Err(StartError::Spec(text.to_owned()));
        }
        let gid = own.run_as_group.or(pod.run_as_group).unwrap_or(0);
        let privileged = own.privileged == Some(true);
        let capabilities = capabilities(container)?;
        let mut groups = pod.supplemental_groups.clone();
        groups.extend(pod.fs_group);
        groups.sort_unstable();
        groups.dedup();
        let working_dir =
            if container.working_dir.is_empty() { "/" } else { &container.working_dir };
        let binds = self.binds(container, &values, message_file)?;
        let mut run = ContainerRun {
            name: container.name.clone(),
            attempt,
            argv,
            env,
            working_dir: working_dir.into(),
            hidden: self.hidden.to_vec(),
            uid,
            gid,
            groups,
            capabilities,
            // Who may do everything may gain rights anyway.
            no_new_privs: own.allow_privilege_escalation == Some(false)
                && !privileged
                && capabilities & rights::SYS_ADMIN == 0,
            privileged,
            read_only_root: own.read_only_root_filesystem == Some(true),
            log: log_file(self.paths, &self.pod.metadata.uid, &container.name),
            log_limit: self.log_limit,
            sandbox: self.sandbox(self.cgroups(container, privileged, &binds)?),
            binds,
            seccomp: seccomp(self.pod, container)?,
            stdin: container.stdin,
            stdin_once: container.stdin_once,
            tty: container.tty,
        };
        if run.tty {
            run.name_terminal();
        }
        Ok(run)
    }

    fn cgroups(
        &self,
        container: &Container,
        privileged: bool,
        binds: &[Bind],
    ) -> io::Result<Vec<Cgroup>> {
        let devices = if privileged { Devices::All } else { Devices::with_volumes(binds)? };
        self.cgroups.make(&self.pod.metadata.uid, &container.name, &devices)
    }

    fn sandbox(&self, cgroups: Vec<Cgroup>) -> Sandbox {
        let sysctls = &self.pod.spec.security_context.sysctls;
        Sandbox {
            hostname: Some(hostname(self.pod)),
            hosts: hosts(self.pod),
            sysctls: sysctls.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
            cgroups,
        }
    }

    fn binds(
        &self,
        container: &Container,
        env: &BTreeMap<String, String>,
        message_file: Option<Bind>,
    ) -> Result<Vec<Bind>, StartError> {
        let mut binds = Vec::new();
        for (index, mount) in container.volume_mounts.iter().enumerate() {
            let volume = self.volumes.get(&mount.name);
            let volume = volume.ok_or_else(|| format!("volume {} is not mounted", mount.name))?;
            let part = match mount.sub_path_expr.as_str() {
                "" => mount.sub_path.clone(),
                template => expand(template, env),
            };
            let source = if part.is_empty() {
                volume.clone()
            } else {
                self.sub_path(volume, &part, container, index)?
            };
            if !mount.mount_path.starts_with('/') {
                return Err(format!("mountPath {:?} is not absolute", mount.mount_path).into());
            }
            let target = PathBuf::from(&mount.mount_path);
            let read_only = mount.read_only || self.is_read_only(&mount.name);
            let host = host_path::is_of_the_host(self.paths, self.pod, volume);
            binds.push(Bind { source, target, read_only, device: false, host });
        }
        for device in &container.volume_devices {
            let source = self.volumes.get(&device.name);
            let source = source.ok_or_else(|| format!("device {} is not there", device.name))?;
            if !device.device_path.starts_with('/') {
                return Err(format!("devicePath {:?} is not absolute", device.device_path).into());
            }
            let target = PathBuf::from(&device.device_path);
            let read_only = self.is_read_only(&device.name);
            binds.push(Bind {
                source: source.clone(),
                target,
                read_only,
                device: true,
                host: false,
            });
        }
        // After the volumes, as kubelet has it: at the same path the message file wins.
        binds.extend(message_file);
        // Outer mounts first, or they would cover the inner ones.
        binds.sort_by_key(|bind| bind.target.components().count());
        Ok(binds)
    }

    fn sub_path(
        &self,
        volume: &Path,
        part: &str,
        container: &Container,
        index: usize,
    ) -> Result<PathBuf, StartError> {
        // The directory above `mount` carries the volume's own name, which the pod's name is not.
        let owner = volume.parent().filter(|_| volume.ends_with("mount")).unwrap_or(volume);
        let spec_name =
            owner.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let place = self.paths.sub_path(&self.pod.metadata.uid, &spec_name, &container.name, index);
        let bound = crate::volumes::bind_sub_path(volume, part, &place).and_then(|bound| {
            let privileged = container.security_context.privileged == Some(true);
            if host_path::is_of_the_host(self.paths, self.pod, volume) && !privileged {
                host_path::refuse_own(&bound, self.hidden)?;
            }
            Ok(bound)
        });
        bound.map_err(|source| {
            let (part, container) = (part.to_owned(), container.name.clone());
            StartError::SubPath { part, container, source }
        })
    }

    fn is_read_only(&self, name: &str) -> bool {
        let volume = self.pod.spec.volumes.iter().find(|volume| volume.name == name);
        volume.is_some_and(|volume| {
            volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only)
                || volume.csi.as_ref().is_some_and(|csi| csi.read_only)
                || super::api_files::is_one(volume)
        })
    }
}

fn capabilities(container: &Container) -> Result<u64, UnknownCapability> {
    if container.security_context.privileged == Some(true) {
        return Ok(rights::ALL);
    }
    let wanted = container.security_context.capabilities.clone().unwrap_or_default();
    rights::capability_set(&wanted.add, &wanted.drop)
}

/// Where a container's output is kept.
pub(crate) fn log_file(paths: &NodePaths, uid: &str, container: &str) -> PathBuf {
    paths.pod(uid).join("logs").join(format!("{container}.log"))
}
