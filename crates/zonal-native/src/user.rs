//! Users: the ids on whose behalf calls are made.

use zonal_types::Credentials;
use zonal_types::limits::GROUPS_MAX;

/// The user on whose behalf a call is made. The shards check its permissions as for processes of a
/// mount. The client's credential limits the users that they accept from it.
///
/// ```
/// use zonal_native::User;
/// let anna = User::new(1000, 1000).with_groups(&[100]).with_umask(0o027);
/// assert_eq!(anna.credentials().groups, [100]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    who: Credentials,
    umask: u32,
}

impl User {
    /// A user without supplementary groups, with the umask 022.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Self {
        Self {
            who: Credentials {
                uid,
                gid,
                groups: Vec::new(),
            },
            umask: 0o022,
        }
    }

    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self::new(0, 0)
    }

    /// With supplementary groups; those beyond the bound (32) are omitted. The superuser needs
    /// none.
    #[must_use]
    pub fn with_groups(mut self, groups: &[u32]) -> Self {
        if self.who.uid != 0 {
            self.who.groups = groups.iter().copied().take(GROUPS_MAX).collect();
        }
        self
    }

    /// With another umask. A directory's default ACL takes precedence.
    #[must_use]
    pub fn with_umask(mut self, umask: u32) -> Self {
        self.umask = umask & 0o777;
        self
    }

    /// The user's ids and groups.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.who
    }

    /// The permission bits that new files do not get.
    #[must_use]
    pub fn umask(&self) -> u32 {
        self.umask
    }

    pub(crate) fn is_root(&self) -> bool {
        self.who.uid == 0
    }
}
