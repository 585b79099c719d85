//! POSIX access control lists: Linux's extended-attribute form (version 2), and the rules of the
//! POSIX draft.

use zonal_types::{Credentials, ErrorCode};

/// Name of the access ACL's attribute.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// Name of the default ACL's attribute.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// One line of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid ACL: owner, users, owning group, groups, mask (where users or groups are named), others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    lines: Vec<Line>,
}

impl Acl {
    /// Reads the attribute's value. `None`: it is empty, which means no ACL.
    ///
    /// # Errors
    /// `Invalid` where lines are missing, doubled or out of order; `NotSupported` for another
    /// version.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, ErrorCode> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(ErrorCode::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(ErrorCode::NotSupported);
        }
        let (chunks, left) = rest.as_chunks::<8>();
        if !left.is_empty() {
            return Err(ErrorCode::Invalid);
        }
        if chunks.is_empty() {
            return Ok(None);
        }
        let lines = chunks.iter().map(|[t0, t1, p0, p1, id @ ..]| Line {
            tag: u16::from_le_bytes([*t0, *t1]),
            perm: u16::from_le_bytes([*p0, *p1]),
            id: u32::from_le_bytes(*id),
        });
        let acl = Self {
            lines: lines.collect(),
        };
        acl.validate()?;
        Ok(Some(acl))
    }

    fn validate(&self) -> Result<(), ErrorCode> {
        let mut want = TAG_USER_OBJ;
        let mut needs_mask = false;
        for line in &self.lines {
            if line.perm & !7 != 0 {
                return Err(ErrorCode::Invalid);
            }
            let has_id = matches!(line.tag, TAG_USER | TAG_GROUP);
            if has_id && line.id == NO_ID {
                return Err(ErrorCode::Invalid);
            }
            needs_mask |= has_id;
            want = match (line.tag, want) {
                (TAG_USER_OBJ, TAG_USER_OBJ) | (TAG_USER, TAG_USER) => TAG_USER,
                (TAG_GROUP_OBJ, TAG_USER) | (TAG_GROUP, TAG_GROUP) => TAG_GROUP,
                (TAG_MASK, TAG_GROUP) => TAG_OTHER,
                (TAG_OTHER, TAG_OTHER) => 0,
                (TAG_OTHER, TAG_GROUP) if !needs_mask => 0,
                _ => return Err(ErrorCode::Invalid),
            };
        }
        if want == 0 {
            Ok(())
        } else {
            Err(ErrorCode::Invalid)
        }
    }

    /// The attribute's value.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.lines.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for line in &self.lines {
            out.extend_from_slice(&line.tag.to_le_bytes());
            out.extend_from_slice(&line.perm.to_le_bytes());
            let id = if matches!(line.tag, TAG_USER | TAG_GROUP) {
                line.id
            } else {
                NO_ID
            };
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// True where the mode bits alone express the ACL.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.lines
            .iter()
            .all(|line| matches!(line.tag, TAG_USER_OBJ | TAG_GROUP_OBJ | TAG_OTHER))
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.lines
            .iter()
            .find(|line| line.tag == tag)
            .map(|line| line.perm)
    }

    fn restrict(&mut self, tag: u16, bits: u32) {
        for line in self.lines.iter_mut().filter(|line| line.tag == tag) {
            line.perm = (bits & 7) as u16;
        }
    }

    fn group_class_tag(&self) -> u16 {
        if self.perm(TAG_MASK).is_some() {
            TAG_MASK
        } else {
            TAG_GROUP_OBJ
        }
    }

    /// The nine permission bits that show this ACL. The group's bits are the mask's where there is
    /// one.
    #[must_use]
    pub fn mode_bits(&self) -> u32 {
        let bits = |tag| u32::from(self.perm(tag).unwrap_or(0));
        bits(TAG_USER_OBJ) << 6 | bits(self.group_class_tag()) << 3 | bits(TAG_OTHER)
    }

    /// Applies chmod to the ACL.
    pub fn chmod(&mut self, mode: u32) {
        self.restrict(TAG_USER_OBJ, mode >> 6);
        self.restrict(self.group_class_tag(), mode >> 3);
        self.restrict(TAG_OTHER, mode);
    }

    /// Inherits a directory's default ACL: returns the access ACL of a new inode created with
    /// `mode`. Its mode is then [`Self::mode_bits`].
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Self {
        let mut new = self.clone();
        let bits = self.mode_bits() & mode;
        new.chmod(bits);
        new
    }

    /// True where a caller that is not the owner may do `mask`. `gid`: the inode's group.
    #[must_use]
    pub fn allows(&self, who: &Credentials, gid: u32, mask: u32) -> bool {
        let want = (mask & 7) as u16;
        let limit = self.perm(TAG_MASK).unwrap_or(7);
        let mut in_some_group = false;
        for line in &self.lines {
            match line.tag {
                TAG_USER if line.id == who.uid => return line.perm & limit & want == want,
                TAG_GROUP_OBJ | TAG_GROUP => {
                    let group = if line.tag == TAG_GROUP { line.id } else { gid };
                    if who.in_group(group) {
                        in_some_group = true;
                        if line.perm & want == want {
                            return line.perm & limit & want == want;
                        }
                    }
                }
                TAG_OTHER => return !in_some_group && line.perm & want == want,
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(lines: &[(u16, u16, u32)]) -> Vec<u8> {
        let lines = lines.iter().map(|&(tag, perm, id)| Line { tag, perm, id });
        Acl {
            lines: lines.collect(),
        }
        .to_bytes()
    }

    const FULL: &[(u16, u16, u32)] = &[
        (1, 7, 0),
        (2, 6, 10),
        (4, 5, 0),
        (8, 7, 20),
        (16, 4, 0),
        (32, 1, 0),
    ];

    #[test]
    fn only_complete_ordered_lists_are_valid() {
        assert!(Acl::parse(&bytes(FULL)).unwrap().is_some());
        assert_eq!(Acl::parse(&[]), Ok(None));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
        assert_eq!(Acl::parse(&[3, 0, 0, 0]), Err(ErrorCode::NotSupported));
        assert_eq!(Acl::parse(&[2, 0, 0]), Err(ErrorCode::Invalid));
        let bad: [&[(u16, u16, u32)]; 6] = [
            &[(1, 7, 0), (4, 5, 0)],
            &[(4, 7, 0), (1, 5, 0), (32, 0, 0)],
            &[(1, 7, 0), (2, 6, 1), (4, 5, 0), (32, 0, 0)],
            &[(1, 7, 0), (1, 7, 0), (4, 5, 0), (32, 0, 0)],
            &[(1, 8, 0), (4, 5, 0), (32, 0, 0)],
            &[(1, 7, 0), (4, 5, 0), (32, 0, 0), (32, 0, 0)],
        ];
        for lines in bad {
            assert_eq!(
                Acl::parse(&bytes(lines)),
                Err(ErrorCode::Invalid),
                "{lines:?}"
            );
        }
        let whole = bytes(FULL);
        for end in 0..whole.len() {
            assert!(
                !matches!(Acl::parse(&whole[..end]), Ok(Some(_))),
                "prefix {end}"
            );
        }
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_others() {
        let acl = Acl::parse(&bytes(FULL)).unwrap().unwrap();
        let who = |uid, gid| Credentials {
            uid,
            gid,
            groups: vec![],
        };
        assert!(acl.allows(&who(10, 1), 5, 4));
        assert!(!acl.allows(&who(10, 1), 5, 2), "the mask takes write away");
        assert!(acl.allows(&who(11, 20), 5, 4));
        assert!(
            !acl.allows(&who(11, 5), 5, 1),
            "in the group, so others' bits do not count"
        );
        assert!(acl.allows(&who(11, 6), 5, 1));
        assert!(!acl.allows(&who(11, 6), 5, 4));
        assert_eq!(acl.mode_bits(), 0o741);
    }

    #[test]
    fn inheritance_and_chmod_follow_the_mask() {
        let acl = Acl::parse(&bytes(FULL)).unwrap().unwrap();
        assert_eq!(acl.inherited(0o600).mode_bits(), 0o600);
        assert_eq!(acl.inherited(0o777).mode_bits(), 0o741);
        let mut changed = acl;
        changed.chmod(0o070);
        assert_eq!(changed.mode_bits(), 0o070);
        assert!(!changed.is_minimal());
    }
}
