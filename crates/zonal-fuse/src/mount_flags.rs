//! The kernel's mount flags, by their words in mount(8) and fstab.

use rustix::mount::MountFlags;

/// Mount flags that are set; the others keep the kernel's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(MountFlags);

const NONE: MountFlags = MountFlags::empty();

/// A word, the flags it sets, and the flags it clears.
const WORDS: &[(&str, MountFlags, MountFlags)] = &[
    ("ro", MountFlags::RDONLY, NONE),
    ("rw", NONE, MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID, NONE),
    ("suid", NONE, MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV, NONE),
    ("dev", NONE, MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC, NONE),
    ("exec", NONE, MountFlags::NOEXEC),
    ("sync", MountFlags::SYNCHRONOUS, NONE),
    ("async", NONE, MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC, NONE),
    (
        "noatime",
        MountFlags::NOATIME,
        MountFlags::RELATIME.union(MountFlags::STRICTATIME),
    ),
    ("atime", NONE, MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME, NONE),
    ("diratime", NONE, MountFlags::NODIRATIME),
    (
        "relatime",
        MountFlags::RELATIME,
        MountFlags::NOATIME.union(MountFlags::STRICTATIME),
    ),
    ("norelatime", NONE, MountFlags::RELATIME),
    (
        "strictatime",
        MountFlags::STRICTATIME,
        MountFlags::NOATIME.union(MountFlags::RELATIME),
    ),
    ("nostrictatime", NONE, MountFlags::STRICTATIME),
    ("lazytime", MountFlags::LAZYTIME, NONE),
    ("nolazytime", NONE, MountFlags::LAZYTIME),
];

/// Words that every version of `fusermount3` passes on.
const OF_HELPER: &[&str] = &[
    "ro", "nosuid", "nodev", "noexec", "sync", "dirsync", "noatime",
];

impl Flags {
    /// Set-id bits and device files have no effect.
    pub const SAFE: Self = Self(MountFlags::NOSUID.union(MountFlags::NODEV));

    /// Applies a word of mount(8); false where the word is not a flag.
    pub fn apply(&mut self, word: &str) -> bool {
        let Some((_, sets, clears)) = WORDS.iter().find(|(name, ..)| *name == word) else {
            return false;
        };
        self.0 = self.0.difference(*clears).union(*sets);
        true
    }

    /// Words of the set flags.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let is_set = move |sets: &MountFlags| !sets.is_empty() && self.0.contains(*sets);
        let set = WORDS.iter().filter(move |(_, sets, _)| is_set(sets));
        set.map(|(word, ..)| *word)
    }

    /// Words of the flags that [`Self::SAFE`] forbids and this mount allows.
    pub fn raised(self) -> impl Iterator<Item = &'static str> {
        let words = [("suid", MountFlags::NOSUID), ("dev", MountFlags::NODEV)];
        let allowed = words
            .into_iter()
            .filter(move |(_, flag)| !self.0.contains(*flag));
        allowed.map(|(word, _)| word)
    }

    /// Words of the set flags that the helper `fusermount3` knows.
    pub(crate) fn helper_words(self) -> impl Iterator<Item = &'static str> {
        self.words().filter(|word| OF_HELPER.contains(word))
    }

    /// The flags for mount(2).
    pub(crate) fn of_kernel(self) -> MountFlags {
        self.0
    }

    /// True where nothing can be changed.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        self.0.contains(MountFlags::RDONLY)
    }

    /// True where reading updates no access time.
    #[must_use]
    pub fn is_noatime(self) -> bool {
        self.0
            .intersects(MountFlags::NOATIME.union(MountFlags::RDONLY))
    }

    /// True where every write is synchronous (O_SYNC).
    #[must_use]
    pub fn is_sync(self) -> bool {
        self.0.contains(MountFlags::SYNCHRONOUS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_mount_flag_overrides_an_earlier_one() {
        let mut flags = Flags::SAFE;
        for word in ["ro", "noatime", "rw", "dev", "sync", "strictatime"] {
            assert!(flags.apply(word), "{word}");
        }
        assert!(!flags.apply("rosy"));
        let words: Vec<_> = flags.words().collect();
        assert_eq!(words, ["nosuid", "sync", "strictatime"]);
        assert_eq!(
            flags.helper_words().collect::<Vec<_>>(),
            ["nosuid", "sync"],
            "an older helper refuses the rest"
        );
    }
}
