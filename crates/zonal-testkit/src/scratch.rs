//! A scratch folder of a test, removed when the value is dropped.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder below the system's temporary one; its path has no symbolic links. Use it as a
/// `&Path`.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder; the name is for people, and each call creates another one.
    ///
    /// # Panics
    /// When the folder cannot be created.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// As [`Self::new`], in memory where this machine has a folder for that; for files that are
    /// flushed often and need not survive.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            Self::below(memory, name)
        } else {
            Self::new(name)
        }
    }

    fn below(folder: &Path, name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("zonal-{name}-{}-{count}", std::process::id());
        let path = folder.join(name);
        let made = std::fs::create_dir_all(&path).and_then(|()| path.canonicalize());
        match made {
            Ok(path) => Self(path),
            Err(error) => panic!("making {}: {error}", path.display()),
        }
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_exists_as_long_as_its_value() {
        let (one, two) = (Scratch::new("twice"), Scratch::new("twice"));
        assert_ne!(one.to_path_buf(), two.to_path_buf());
        let path = one.to_path_buf();
        assert!(path.is_dir());
        std::fs::write(one.join("file"), "x").ok();
        drop(one);
        assert!(!path.exists());
        assert!(two.is_dir());
    }
}
