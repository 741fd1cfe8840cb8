//! Fresh filesystems that are kept to be copied, so that each shape is made once.
//!
//! | name | meaning |
//! |---|---|
//! | `.tpl-<shape>` | a template |
//! | `.tpl-<shape>.<node>` | one that is not finished |
//!
//! A template is a file that is never mounted. When there are too many, all go: a shape that is
//! still wanted is made once more.

use std::fs::File;
use std::io::ErrorKind;

use rustix::fs::{OFlags, RenameFlags};
use sha2::{Digest, Sha256};

use super::{Pool, PoolError, Role};
use crate::copy::{self, CopyError, Terms};

const PREFIX: &str = ".tpl-";
/// Most templates in a pool; each occupies a few hundred KiB.
const MOST: usize = 32;

/// Name of the template of a shape. Shapes are texts of ours, but long ones.
fn name(shape: &str) -> String {
    format!("{PREFIX}{}", &hex::encode(Sha256::digest(shape.as_bytes()))[..32])
}

impl Pool {
    /// Copies the template of a shape into an empty scratch file; false when there is none.
    pub fn copy_template(&self, shape: &str, scratch: &File) -> Result<bool, PoolError> {
        let template = match self.dir.open_file(&name(shape), OFlags::RDONLY) {
            Ok(template) => template,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(self.fail("open a template", error)),
        };
        self.copy_blocks("copy a template", &template, scratch)?;
        Ok(true)
    }

    /// Keeps a copy of a fresh filesystem as the template of its shape.
    pub fn keep_template(&self, shape: &str, made: &File, node: &str) -> Result<(), PoolError> {
        self.limit_templates()?;
        let (name, draft) = (name(shape), format!("{}.{}", name(shape), super::names::hash(node)));
        let file = self.io("make a template", self.dir.create_file(&draft))?;
        let kept = self.copy_blocks("make a template", made, &file).and_then(|()| {
            // Whole before it has its name: it is copied into many volumes.
            self.io("flush a template", file.sync_all())?;
            self.io("name a template", self.dir.rename(&draft, &name, RenameFlags::empty()))
        });
        if kept.is_err() {
            self.io("tidy", self.dir.remove(&draft))?;
        }
        kept
    }

    fn copy_blocks(&self, what: &str, from: &File, to: &File) -> Result<(), PoolError> {
        match copy::copy(from, to, Terms { share: false, until: None }) {
            Ok(_) => Ok(()),
            Err(CopyError::Io { source, .. }) => Err(self.fail(what, source)),
            Err(error) => Err(self.fail(what, std::io::Error::other(error.to_string()))),
        }
    }

    fn limit_templates(&self) -> Result<(), PoolError> {
        let names = self.io("list it", self.dir.names())?;
        let templates: Vec<_> = names.iter().filter(|name| name.starts_with(PREFIX)).collect();
        if templates.len() >= MOST {
            for name in templates {
                self.io("tidy", self.dir.remove(name))?;
            }
        }
        Ok(())
    }

    /// Waits until no other call of this process is making a template.
    pub fn make_template(&self) -> impl Drop + '_ {
        self.making_template.lock()
    }

    /// Removes a template that cannot be used.
    pub fn drop_template(&self, shape: &str) -> Result<(), PoolError> {
        self.io("remove a template", self.dir.remove(&name(shape)))
    }

    /// Removes templates that this node never finished.
    pub(super) fn settle_templates(
        &self,
        names: &[String],
        role: Role<'_>,
    ) -> Result<(), PoolError> {
        let own = format!(".{}", super::names::hash(role.node_id));
        let unfinished = |name: &&String| {
            name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains('.'))
                && (role.exclusive || name.ends_with(&own))
        };
        for name in names.iter().filter(unfinished) {
            self.io("tidy", self.dir.remove(name))?;
        }
        Ok(())
    }
}
